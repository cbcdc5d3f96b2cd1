"""Names of taps and numbers of layers as a person reads them: many of a kind in one word."""

import re
from collections.abc import Iterable, Sequence

from lockstep.reference.checkpoint.errors import clip_end, escape

PLACE = r"(?:model\.layers|transformer\.h)\.[0-9]+"  # of a layer among the modules
LAYER = re.compile(rf"((?:step\.[0-9]+/)?{PLACE})(\.|$)")
STEP = re.compile(r"^step\.[0-9]+/")
LISTED, RUNS = 6, 8  # names in a list, and ranges of layers in a sentence


def kind(name: str) -> str:
    """Return a tap's name for all layers and steps: model.layers.*.mlp.act_fn."""
    bare = STEP.sub("", name)
    return re.sub(rf"^{PLACE}", lambda found: found[0].rpartition(".")[0] + ".*", bare)


def groups(names: Iterable[str]) -> list[tuple[str, int]]:
    """Return names, those of all layers and steps together, with how many each stands for.

    A name that is alone of its kind stays whole: it says which layer it is of. So do steps, of
    which none is the prompt's.
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind(name), []).append(name)
    return [(steps(of) + name if len(of) > 1 else of[0], len(of)) for name, of in kinds.items()]


def steps(names: list[str]) -> str:
    """Return `step.2/` or `step.*/` of names that all are of steps, nothing of others."""
    found = [STEP.match(name) for name in names]
    some = {one[0] for one in found if one}
    if not all(found):
        return ""
    return "step.*/" if len(some) > 1 else some.pop()


def grouped(names: list[str]) -> str:
    """Return names, those of all layers and steps together: model.layers.*.mlp.act_fn (4)."""
    parts = [named(name) + f" ({count})" * (count > 1) for name, count in groups(names)]
    more = len(parts) - LISTED
    return ", ".join(parts[:LISTED]) + (f" and {more} more" if more > 0 else "")


def named(name: str) -> str:
    return clip_end(escape(name[:200]), 80)


def layers_said(numbers: Sequence[int]) -> str:
    """Return `layers 0-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    if not runs:
        return ""
    text = ", ".join("-".join(map(str, run)) for run in runs[:RUNS])
    more = f" and {len(runs) - RUNS} more" if len(runs) > RUNS else ""
    return f"layer{'s' if len(numbers) > 1 else ''} {text}{more}"
