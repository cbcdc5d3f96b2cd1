"""What goes wrong with the ends of a prompt. Much else looks like it, and is thought of first."""

from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.parity.faults.tokenizer.texts import text

MISTAKES = (
    Mistake(
        id="prompt-stripped",
        wrong="strip(text)",
        right="text",
        symptom="another first or last token",
        where="tokens",
        fix="encode the text as it stands, with the spaces and line feeds at its ends",
        variants={
            "at the end": text(str.rstrip),
            "at the start": text(str.lstrip),
            "at both ends": text(str.strip),
            "the last line feed alone": text(lambda said: said.removesuffix("\n")),
        },
    ),
    Mistake(
        id="prompt-token-lost",
        wrong="one id fewer at an end",
        right="t1 t2 ... tn",
        symptom="answers to another question, or a first token that repeats the prompt",
        where="tokens",
        fix="feed all ids of the prompt, from the first to the last",
        variants={
            "the last": Edit("ids", lambda ids, prompt: ids[:-1] or None),
            "the first": Edit("ids", lambda ids, prompt: ids[1:] or None),
        },
    ),
)
