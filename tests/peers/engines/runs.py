"""One checkpoint through four engines, and what `explain` says of each capture.

`python -m tests.peers.engines.runs` prints the tables of docs/parity/engines.md, with `--write`
into the page itself. Needs the groups `peers` and `llama-cpp`.
"""

import argparse
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import torch
from mlx_lm.utils import load_model
from transformers import AutoModelForCausalLM

from lockstep import parity, reference
from tests.peers.engines.bugs import COMBINATIONS, SINGLES, Bug
from tests.peers.engines.checkpoints import (
    CONFIGS,
    LENGTH,
    Checkpoint,
    adapted,
    in_blocks,
    merged,
    right,
    write_adapter,
    write_file,
    write_folder,
)
from tests.witnesses import build, llama_cpp_runs

PAGE = Path(__file__).parents[3] / "docs/parity/engines.md"
BEGIN, END = "<!-- tables: tests/peers/engines/runs.py -->", "<!-- end of tables -->"
PACKED = "Q8_0"
SLACK = 2
BASES = (*CONFIGS, "qwen3+lora")
LEGEND = ("named", "apart", "unknown", "wrong", "missed")


def by_transformers(checkpoint: Checkpoint, folder: Path, tokens: list[int]) -> Any:
    path = write_folder(checkpoint, folder / "model", "float32")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with parity.capture.torch(model) as dump, torch.no_grad():
        model(torch.tensor([tokens]))
    return dump


def by_mlx_lm(checkpoint: Checkpoint, folder: Path, tokens: list[int]) -> Any:
    model, _ = load_model(write_folder(checkpoint, folder / "model", "float32"))
    with parity.capture.mlx(model) as dump:
        model(mx.array([tokens]))
    return dump


def by_llama_cpp(kind: str) -> Callable[[Checkpoint, Path, list[int]], Any]:
    def run(checkpoint: Checkpoint, folder: Path, tokens: list[int]) -> Any:
        llama = llama_cpp_runs.model(write_file(checkpoint, folder / "m.gguf", kind))
        with parity.capture.llama_cpp(llama) as dump:
            llama.eval(tokens)
        llama.close()
        return dump

    return run


ENGINES: dict[str, Callable[[Checkpoint, Path, list[int]], Any]] = {
    "transformers": by_transformers,
    "mlx-lm": by_mlx_lm,
    "llama.cpp, F32": by_llama_cpp("F32"),
    "llama.cpp, Q8_0": by_llama_cpp(PACKED),
}


@dataclass
class Bench:
    """What all runs share: a folder, the right checkpoints, and the reference models of them."""

    folder: Path
    models: dict[tuple[str, bool], Any] = field(default_factory=dict)

    def base(self, name: str, packed: bool) -> Checkpoint:
        checkpoint = right(name.removesuffix("+lora"))
        checkpoint = in_blocks(checkpoint, PACKED) if packed else checkpoint
        return adapted(checkpoint) if name.endswith("+lora") else checkpoint

    def reference(self, name: str, packed: bool) -> Any:
        """Return the right model: of the folder, or of the file in blocks."""
        if (name, packed) not in self.models:
            checkpoint, here = self.base(name, packed), self.folder / f"{name} {packed}"
            here.mkdir()
            write = write_file if packed else write_folder
            kind = PACKED if packed else "bfloat16"
            path = write(checkpoint, here / ("m.gguf" if packed else "model"), kind)
            adapter = write_adapter(checkpoint, here / "adapter") if checkpoint.adapter else None
            self.models[name, packed] = reference.load(path, adapter)
        return self.models[name, packed]

    def explained(self, engine: str, name: str, bugs: tuple[Bug, ...] = ()) -> Any:
        """Let an engine run a base with some bugs in it, and return what is said of its capture."""
        packed = engine.endswith(PACKED)
        checkpoint = with_bugs(self.base(name, packed), bugs)
        tokens = build.prompts(BASES.index(name), checkpoint.keys["vocab_size"])[0, :LENGTH]
        scratch = self.folder / "port"
        scratch.mkdir()
        dump = ENGINES[engine](checkpoint, scratch, tokens.tolist())
        shutil.rmtree(scratch)
        return parity.explain(self.reference(name, packed), dump)


def with_bugs(base: Checkpoint, bugs: tuple[Bug, ...]) -> Checkpoint:
    """Return a copy with bugs in it; an adapter is merged first, rightly or wrongly."""
    wrong = base.copy()
    first = sorted(bugs, key=lambda bug: not bug.of.endswith("+lora"))
    if base.adapter and not any(bug.of.endswith("+lora") for bug in bugs):
        wrong = merged(wrong)
    for bug in first:
        wrong = bug.change(wrong) or wrong
    return wrong


def outcomes(found: Any, bugs: tuple[Bug, ...]) -> list[str]:
    """Return an outcome for each bug, and "wrong" for each name of something that is not there.

    A bug that is named, but not for all that is wrong, counts as unknown. What is left within
    SLACK noises does not count: processors differ by as much in what llama.cpp rounds.
    """
    planted = frozenset().union(*(bug.ids for bug in bugs))
    said = [{one.id, *one.also_fits} for one in found.faults]
    rows = ["wrong" for ids in said if not ids & planted]
    left = [one for one in found.unexplained if not within_noise(one)]
    for bug in bugs:
        ids = next((ids for ids in said if ids & bug.ids), None)
        if ids is not None and not (left and len(bugs) == 1):
            rows.append("named" if ids <= bug.ids else "apart")
        else:
            rows.append("missed" if found.verdict == "clean" else "unknown")
    return rows


def within_noise(one: Any) -> bool:
    return bool(one.noise) and one.own_error <= SLACK * one.noise


def cell(rows: list[str]) -> str:
    """Say the outcomes of one run in a word, or in a word and how many each."""
    counts = Counter(rows)
    if len(rows) == 1 or set(rows) == {"named"}:
        return rows[0]
    return ", ".join(f"{counts[word]} {word}" for word in LEGEND if counts[word])


def cases() -> Iterator[tuple[str, str, tuple[Bug, ...]]]:
    """Yield what is planted by name, the base that it is planted in, and the bugs."""
    for name, bug in SINGLES.items():
        yield name, bug.of, (bug,)
    for names in COMBINATIONS:
        bugs = tuple(SINGLES[name] for name in names)
        yield "; ".join(names), max((bug.of for bug in bugs), key=len), bugs


def row(name: str, of: str, bench: Bench, bugs: tuple[Bug, ...], tells: bool = False) -> list[str]:
    """Return a row of the table: what is planted, where, and a cell for each engine."""
    cells = [name, of]
    for engine in ENGINES:
        began = time.perf_counter()
        found = bench.explained(engine, of, bugs)
        cells.append(cell(outcomes(found, bugs)))
        if tells:
            tell(engine, found, time.perf_counter() - began)
    return cells


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def summary(rows: list[list[str]]) -> list[str]:
    """Count the runs in which everything was named, for each engine."""
    counts = [
        f"{sum(one[2 + place] == 'named' for one in rows)} of {len(rows)}"
        for place in range(len(ENGINES))
    ]
    return ["all of it named", "", *counts]


def tables(rows: list[list[str]]) -> str:
    """Return the tables of the page: bugs alone, then several at once."""
    parts = []
    for some in (rows[: len(SINGLES)], rows[len(SINGLES) :]):
        head = ["planted", "in", *ENGINES]
        parts.append("\n".join(map(line, [head, ["---"] * len(head), *some, summary(some)])))
    return "\n\nSeveral at once:\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="run what has this in its name")
    parser.add_argument("--tell", action="store_true", help="print what was said, and how long")
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    arguments = parser.parse_args()
    build.settle()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for name, of, bugs in cases():
            if arguments.only is None or arguments.only in name:
                rows.append(row(name, of, bench, bugs, arguments.tell))
                print(line(rows[-1]), flush=True)
    if arguments.write and arguments.only is None:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{tables(rows)}\n\n{END}{after}", encoding="utf-8")


def tell(engine: str, found: Any, seconds: float) -> None:
    print(f"  {engine}: {found.verdict}, {seconds:.1f} s")
    for bug in found.faults:
        print("   ", bug.id, bug.variant, bug.layers, bug.also_fits)
    for one in found.unexplained:
        print("    ?", one.tap, f"{one.own_error:.2g} {one.noise:.2g}", one.shape)


if __name__ == "__main__":
    main()
