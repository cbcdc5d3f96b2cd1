"""What `lockstep demo` tells: a model, a port of it with seven bugs, and their names."""

import json
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.parity.check import check
from lockstep.parity.demo.seven_bugs import BUGS, planted
from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.explain import explain
from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.parity.explaining.said.report import report
from lockstep.parity.generating.generation import Generation
from lockstep.parity.generating.uniforms import seeded
from lockstep.parity.progress import Progress
from lockstep.reference.model import load as load_reference
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.tokenizer.tokenizer import load_tokenizer

HERE = Path(__file__).parent
CHECKPOINT, ADAPTER = HERE / "gemma4", HERE / "pirate"
TALE, COLOUR, SUM = "Tell me about a king.", "What colour is snow?", "What is 2+2?"
SHOWN = (TALE, COLOUR, SUM)
ADAPTED = ("What is the opposite of hot?", "What day comes after Monday?")
LONGEST = 24  # tokens of an answer
WIDTH = 80
DUMPS = ("port", "port-of-adapter")  # what is written with --out: their names, without the ending
FOLDERS = {"model": CHECKPOINT, "adapter": ADAPTER}
# What the operations of a port make inside a module, which no hook on its modules sees.
INSIDE = (".q_rope", ".k_rope", ".scores", ".probs", ".context", ".residual", ".routing")
WRONG_SCALE = "lora-scale-divided-again"

Say = Callable[[str], None]
Answers = dict[str, str]


def tell(say: Say, out: str | None) -> dict[str, Any]:
    """Run the demo; return what was seen and whether it is as it should be."""
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as kept:
        folder = Path(kept)
        right = Scene(say, folder)
        story = {**right.the_model(), **right.the_port(), **right.the_adapter()}
    story["as_it_should"] = as_it_should(story)
    if out is not None:
        keep(folder, story, right.reports, say)
    return story


class Scene:
    """The right model, and what has been seen so far."""

    def __init__(self, say: Say, folder: Path):
        from lockstep.fast.model import load as load_fast

        self.say, self.folder = say, folder
        self.reports: dict[str, str] = {}
        self.reference = load_reference(CHECKPOINT)
        self.right = load_fast(CHECKPOINT, backend="cpu")
        self.mlx = load_fast(CHECKPOINT, backend="mlx")
        self.tokenizer = load_tokenizer(CHECKPOINT)

    def the_model(self) -> dict[str, Any]:
        """Let the model speak, and hold both fast backends against the reference."""
        self.say(f"1. {MODEL}\n")
        said = self.answers(self.right, SHOWN)
        self.say(conversation(said))
        prompt = [self.tokens(TALE)]
        checks = {
            name: check(self.reference, model, prompt, decode=2)
            for name, model in (("cpu", self.right), ("mlx", self.mlx))
        }
        verdicts = {name: result.verdict for name, result in checks.items()}
        told = "\n".join(
            f"   lockstep check: {name} against the reference, {result.verdict} in all of "
            f"{len(result.taps)} values" if result.verdict == "parity" else
            f"   lockstep check: {name} against the reference, {result.verdict}"
            for name, result in checks.items()
        )  # fmt: skip
        self.say(f"\n{told}")
        return {"answers": said, "checks": verdicts}

    def the_port(self) -> dict[str, Any]:
        """Plant the bugs, show what the port writes, and explain its dump."""
        self.say(f"\n2. {PORT}")
        self.say(wrapped(f"{', '.join(bug.wrong for bug in BUGS)}. It writes:") + "\n")
        broken = self.with_bugs(BUGS)
        said = self.answers(broken, SHOWN)
        self.say(conversation(said))

        self.say(f"\n3. {EXPLAINED}\n")
        found = self.explained(self.reference, broken, TALE, DUMPS[0])

        self.say(f"\n4. {ONE_BY_ONE}\n")
        fixed: list[list[str]] = []
        for count in range(len(BUGS) + 1):
            what = "nothing" if count == 0 else f"+ {BUGS[count - 1].right}"
            text = self.answers(self.with_bugs(BUGS[count:]), [COLOUR])[COLOUR]
            fixed.append([what, text])
            self.say(f"   {what:<23}  {quoted(text, WIDTH - 28)}")
        self.say("\n" + wrapped(AFTERWARDS))
        return {"broken_answers": said, "explained": found.to_json(), "fixed": fixed}

    def the_adapter(self) -> dict[str, Any]:
        """Do the same for an adapter, whose scale the port divides by its rank."""
        self.say(f"\n5. {LORA}\n")
        right = self.right.with_adapter(ADAPTER)
        broken = divided_again(right)
        said = self.answers(broken, ADAPTED)
        self.say(conversation(said) + f"\n\n   {ITS_DUMP}\n")
        reference = load_reference(CHECKPOINT, ADAPTER)
        found = self.explained(reference, broken, ADAPTED[0], DUMPS[1])
        fixed = self.answers(right, ADAPTED)
        self.say("\n   Fixed, it writes:\n\n" + conversation(fixed))
        return {"adapter": {"broken": said, "explained": found.to_json(), "fixed": fixed}}

    def with_bugs(self, bugs: Iterable[Any]) -> Any:
        """Return the model on operations of which some are wrong."""
        port = copy(self.right)
        port.ops = planted(port.ops, bugs)
        return port

    def explained(self, reference: Any, port: Any, question: str, name: str) -> Diagnosis:
        """Dump what a port's modules give, explain it, and say what is to be fixed."""
        path = self.folder / f"{name}.safetensors"
        count = dump_modules(port, self.tokens(question), path)
        with Progress(2 * count) as progress:
            found = explain(reference, path, progress=progress)
        self.reports[name] = report(found)
        self.say(fixes(found))
        return found

    def tokens(self, question: str) -> list[int]:
        return self.tokenizer.encode_chat([{"role": "user", "content": question}])

    def answers(self, model: Any, questions: Iterable[str]) -> Answers:
        """Let a model answer every question greedily."""
        generation = Generation(model, SamplingOptions(), seeded(0), ignore_eos=False)
        return {
            question: generation.run(self.tokens(question), LONGEST, lambda text: None)["text"]
            for question in questions
        }


MODEL = "The right model: Gemma 4 26B-A4B in miniature, trained, in 4 and 8 bits."
PORT = "A port of it. It runs, and every shape fits; but it has seven bugs:"
EXPLAINED = "The port dumps what its modules give in one prefill. lockstep explain says:"
ONE_BY_ONE = f"Now they are fixed, one after another. {COLOUR}"
AFTERWARDS = (
    "Each bug hides the next: nothing reads well before the last is fixed. The softcap cannot be "
    "heard at all, for it changes no greedy choice."
)
ITS_DUMP = "lockstep explain, given a dump of it and the adapter, says:"
LORA = "An adapter that speaks like a pirate. The port divides its scale by its rank:"


def dump_modules(port: Any, tokens: list[int], path: Path) -> int:
    """Write what hooks on the modules of a port would see in one prefill; return how many."""
    with TraceFile(path, model=CHECKPOINT.name, backend="port", dtype="float32",
                   tokens=tokens) as file:  # fmt: skip

        def note(name: str, value: Any) -> None:
            if not name.endswith(INSIDE):
                file(name, value)

        port.forward([tokens], trace=note)
        return file.count


def divided_again(model: Any) -> Any:
    """Return a model whose adapters count less by their rank: mlx-lm's scale taken for an alpha."""
    port = copy(model)
    modules = {
        path: replace(one, scale=one.scale / one.a.shape[0])
        for path, one in model.adapters.modules.items()
    }
    port.adapters = replace(model.adapters, modules=modules)
    return port


def conversation(said: Answers) -> str:
    """Lay out questions and answers."""
    width = max(map(len, said))
    room = WIDTH - width - 6
    return "\n".join(
        f"   {question:<{width}}  {quoted(text, room)}" for question, text in said.items()
    )


def quoted(text: str, room: int) -> str:
    """Return a text on one line, in quotes, cut where there is no more room."""
    line = " ".join(text.split())
    return f'"{line}"' if len(line) + 2 <= room else f'"{line[: room - 5]} ..."'


def wrapped(text: str, indent: str = "   ") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def fixes(found: Diagnosis) -> str:
    """Return the names, and what is to be done about each."""
    count = len(found.faults)
    lines = [f"   {count} bugs, each with its fix:" if count > 1 else "   1 bug:", ""]
    for number, fault in enumerate(found.faults, 1):
        lines += [f"   {number}. {fault.id}", wrapped(fault.fix, " " * 6)]
    left = f"{len(found.unexplained) or 'nothing'} unexplained"
    took = f"{found.compared} values compared in {found.seconds:.0f} s"
    return "\n".join([*lines, "", f"   {took}, {left} beside these"])


def as_it_should(story: dict[str, Any]) -> bool:
    """Say whether every name was found and no other, and every text is what it should be."""
    adapter, right = story["adapter"], story["answers"]
    texts = [text for _, text in story["fixed"]]
    return (
        named(story["explained"]) == sorted(bug.id for bug in BUGS)
        and named(adapter["explained"]) == [WRONG_SCALE]
        and set(story["checks"].values()) == {"parity"}
        and all(story["broken_answers"][question] != right[question] for question in SHOWN)
        and texts[-1] == right[COLOUR]
        and right[COLOUR] not in texts[:-1]
        and all(adapter["broken"][one] != adapter["fixed"][one] for one in ADAPTED)
    )


def named(explained: dict[str, Any]) -> list[str]:
    """Return the ids of a diagnosis; what is wrong and unexplained counts as one more."""
    unknown = [f"unknown at {one['tap']}" for one in explained["unexplained"]]
    return sorted([*(one["id"] for one in explained["faults"]), *unknown])


def keep(folder: Path, story: dict[str, Any], reports: dict[str, str], say: Say) -> None:
    """Write the model, the adapter and the reports beside the dumps; say how to go on."""
    for name, source in FOLDERS.items():
        (folder / name).mkdir(exist_ok=True)
        for path in sorted(source.iterdir()):
            (folder / name / path.name).write_bytes(path.read_bytes())
    for name, text in reports.items():
        (folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
    (folder / "result.json").write_text(json.dumps(story, indent=2) + "\n", encoding="utf-8")
    model, dumps = folder / "model", [folder / f"{name}.safetensors" for name in DUMPS]
    say(f"\nKept in {folder}. Go on yourself:\n")
    say(f"  lockstep explain {model} {dumps[0]}")
    say(f"  lockstep explain {model} {dumps[1]} --adapter {folder / 'adapter'}")
    say(f'  lockstep generate {model} --chat --prompt "{SHOWN[-1]}"')
