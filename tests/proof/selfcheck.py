"""Plant every bug alone in every build and say what it moves: `python -m tests.proof.selfcheck`.

It prints, for each bug and build, how far the logits and the tap that moved most went, in their own
standard deviations, and how many times as far as rounding moves it. Then it lists what a reader of
the benchmark should know: bugs that moved no more than rounding does, benign ones that did, and
twins, which give the same values there.
"""

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.proof import builds, ports
from tests.proof.combos import Dump, distances, moved
from tests.proof.registry import EVERY_DTYPE, Bug, applicable, every_bug
from tests.witnesses import build

STEP = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
MARGIN = 2  # a bug is seen if it moves something by so many floors
ALIKE = 1e-3  # of their own effect: two bugs that are no further apart are twins
CASES = [*builds.BUILDS, *(f"qwen3+{name}" for name in builds.ADAPTERS)]


@dataclass(frozen=True)
class Effect:
    """How far one bug moved one build, and what it gave.

    `floors` is the most that a tap moved in units of its floor: how far apart two right ports are
    there, eager and SDPA, or a quarter of a rounding step if they agree.
    """

    bug: Bug
    build: str
    logits: float
    taps: float
    floors: float
    dump: Dump

    @property
    def seen(self) -> bool:
        return self.floors > MARGIN


def case(name: str, folder: Path, seed: int) -> tuple[Path, Path | None]:
    """Make a build, `build` or `build+adapter`, and return its folder and its adapter."""
    base, _, adapter = name.partition("+")
    path = builds.make(base, folder / base, seed=seed)
    if not adapter:
        return path, None
    return path, builds.adapter(adapter, path, folder / adapter, seed=seed)


def effects(
    name: str,
    folder: Path,
    *,
    seed: int,
    dtype: str,
    attention: str,
    bugs: Iterable[Bug],
    every: int = 1,
) -> list[Effect]:
    """Plant the bugs that exist in a build, or one of so many, alone, and measure."""
    path, adapter = case(name, folder, seed)
    options = {"dtype": dtype, "adapter": adapter}
    prompts = {
        "long": builds.tokens(seed, path),
        "short": builds.tokens(seed, path, length=builds.SHORT),
    }
    subject = ports.subject(path, **options)
    both = {one: ports.load(path, attention=one, **options) for one in ("eager", "sdpa")}
    clean = {
        one: {kind: ports.dump(port, ids) for kind, ids in prompts.items()}
        for one, port in both.items()
    }
    found = []
    for one in applicable(subject, bugs)[::every]:
        if adapter is None or one.id.startswith(("lora", "dora")):
            port = ports.load(path, [one], attention=attention, **options)
            wrong, right = ports.dump(port, prompts[one.prompt]), clean[attention][one.prompt]
            moves = distances(wrong, right)
            rounding = distances(clean["eager"][one.prompt], clean["sdpa"][one.prompt])
            most = max(move / max(rounding[tap], STEP[dtype] / 4) for tap, move in moves.items())
            found.append(Effect(one, name, moves["logits"], max(moves.values()), most, wrong))
    return found


def twins(found: list[Effect]) -> list[str]:
    """Return the pairs of bugs of different classes that no dump of this build tells apart."""
    pairs = []
    for index, one in enumerate(found):
        for other in found[index + 1 :]:
            if one.bug.id == other.bug.id or one.bug.prompt != other.bug.prompt:
                continue
            alike = abs(one.logits - other.logits) < ALIKE * one.logits
            if alike and moved(one.dump, other.dump) < ALIKE * one.taps:
                pairs.append(f"  twins in {one.build}: {one.bug.name} = {other.bug.name}")
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", action="append", choices=CASES)
    parser.add_argument("--dtype", default="float32", choices=EVERY_DTYPE)
    parser.add_argument("--attention", default="eager", choices=("eager", "sdpa"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--id", action="append")
    chosen = parser.parse_args()
    build.settle()
    bugs = [one for one in every_bug() if not chosen.id or one.id in chosen.id]
    found: list[Effect] = []
    for name in chosen.build or CASES:
        with tempfile.TemporaryDirectory() as folder:
            options = {"seed": chosen.seed, "dtype": chosen.dtype, "attention": chosen.attention}
            here = effects(name, Path(folder), bugs=bugs, **options)
        for one in here:
            moves = f"logits {one.logits:8.1e}  most {one.taps:8.1e}  floors {one.floors:8.1f}"
            print(f"{name:20} {one.bug.name:60} {moves}")
        for line in twins([one for one in here if one.seen]):
            print(line)
        found += [replace(one, dump={}) for one in here]
    print(summary(found, bugs, chosen.dtype))


def summary(found: list[Effect], bugs: list[Bug], dtype: str) -> str:
    """Say which bugs moved nothing, or no more than rounding, and which exist nowhere."""
    places = defaultdict(list)
    for one in found:
        if one.seen == bool(one.bug.benign):
            kind = "benign, but seen" if one.seen else "not seen"
            places[f"{kind}: {one.bug.name}"].append(f"{one.build} {one.floors:.1f}")
    lines = [f"{len({one.bug.id for one in found})} classes, {len(found)} cases in {dtype}"]
    lines += [f"  {what}: {', '.join(where)}" for what, where in places.items()]
    absent = {one.name for one in bugs} - {one.bug.name for one in found}
    return "\n".join([*lines, *(f"  nowhere: {name}" for name in sorted(absent))])


if __name__ == "__main__":
    main()
