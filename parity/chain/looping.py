"""Judge what an answer shows by itself: where it begins, where it ends, how long it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep.parity.chain.fitting import Candidate, Fit
from lockstep.parity.chain.named import named
from lockstep.parity.chain.said import Said
from lockstep.parity.explaining.diagnosis import Diagnosis, Named, Unexplained
from lockstep.parity.faults.mistake import Mistake
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model


def judge_answer(
    model: Model, said: Said, mistakes: Sequence[Mistake], result: Diagnosis
) -> list[int]:
    """Name what is wrong with an answer as a list; return it without a prompt that it echoes."""
    known = {one.id: one for one in mistakes}
    tokens, answer = said.tokens or [], said.answer
    found = []
    if len(answer) > len(tokens) and answer[: len(tokens)] == tokens:
        told = f"the answer begins with the {len(tokens)} ids of the prompt"
        found += counted(known, "prompt-echoed", "", len(tokens) / len(answer), told)
        answer = answer[len(tokens) :]
    settings = said.settings or {}
    ends = set() if settings.get("ignore_eos") else stop_ids(model)
    found += ended(known, answer, ends)
    limit = settings.get("max_new_tokens")
    if limit is not None:
        found += length(known, answer, int(limit), ends, result)
    result.faults += found
    if ends or limit is not None or found:
        result.stage("decoding", len(said.answer), right=not found)
    return answer


def stop_ids(model: Model) -> set[int]:
    """Return the ids that end a text: generation_config's and the tokenizer's."""
    from lockstep.reference.tokenizer.tokenizer import load_tokenizer

    try:
        own = load_tokenizer(model.checkpoint.path).eos_token_ids
    except InputError:
        own = frozenset()
    return {*model.checkpoint.generation.eos_token_ids, *own}


def ended(known: dict[str, Mistake], answer: Sequence[int], ends: set[int]) -> Iterator[Named]:
    """Find an end of text that the answer runs over."""
    passed = [token for token in answer[:-1] if token in ends]
    if not passed:
        return
    at = next(at for at, token in enumerate(answer) if token in ends)
    told = f"id {answer[at]} at place {at} ends the text, and {len(answer) - 1 - at} ids follow"
    share = (len(answer) - 1 - at) / len(answer)
    stopped = answer[-1] in ends and answer[-1] not in passed
    first, other = ("eos-set-incomplete", "eos-ignored") if stopped else (
        "eos-ignored", "eos-set-incomplete"
    )  # fmt: skip
    # Who stops at another id knows how to stop; who never does may know only ids that never came.
    both = not stopped and len(ends) > len({*passed})
    yield from counted(known, first, "", share, told, (other,) if both else ())


def length(
    known: dict[str, Mistake], answer: Sequence[int], limit: int, ends: set[int], result: Diagnosis
) -> list[Named]:
    """Find an answer that is longer than it may be, or ends before its time."""
    told = f"{len(answer)} ids, where {limit} were asked for"
    stopped = bool(answer) and answer[-1] in ends
    if len(answer) == limit + 1:
        return counted(known, "max-tokens-off-by-one", "one more", 1 / len(answer), told)
    if len(answer) == limit - 1 and not stopped:
        return counted(known, "max-tokens-off-by-one", "one fewer", 1 / limit, told)
    if len(answer) > limit or (len(answer) < limit and not stopped):
        more = "" if len(answer) > limit else ", and none of them ends the text"
        share = abs(len(answer) - limit) / max(len(answer), limit)
        result.unexplained.append(Unexplained("decoded", share, 0.0, told + more))
        result.stage("decoding", len(answer), right=False)
    return []


def counted(
    known: dict[str, Mistake],
    id: str,
    variant: str,
    share: float,
    told: str,
    ties: tuple[str, ...] = (),
) -> list[Named]:
    """Return a bug that was found by counting, if it is one of those to think of."""
    if id not in known:
        return []
    one = Candidate(known[id], variant, known[id].variants[variant])
    return named(Fit((one,), (ties,), None), "decoded", share, told)
