"""Several bugs at once: which may stand together, and which of them the others hide."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tests.proof import ports
from tests.proof.registry import Bug, Subject, applicable

ROUNDING = 1e-5  # what float32 moves when it only sums in another order
# Tables, the insides of PEFT's modules, rows that stand in the order of experts, and what a module
# that is called more than once gives in each of its calls.
UNJUDGED = ("rotary_emb", "lora_", "base_layer", "experts.act_fn", "@")

Dump = dict[str, np.ndarray]


def draw(subject: Subject, count: int, rng: np.random.Generator, **more: Any) -> list[Bug]:
    """Draw bugs of one subject, no two of one site and none that is benign.

    Every class has the same chance, however many variants it has. Raises: ValueError if there are
    not that many sites.
    """
    found = [one for one in applicable(subject, **more) if not one.benign and one.prompt == "long"]
    chosen: list[Bug] = []
    for id in rng.permutation(sorted({one.id for one in found})):
        variants = [one for one in found if one.id == id and one.site not in sites(chosen)]
        if variants and len(chosen) < count:
            chosen.append(variants[rng.integers(len(variants))])
    if len(chosen) < count:
        raise ValueError(f"only {len(chosen)} bugs can stand together, but {count} are asked for")
    return chosen


def sites(bugs: Iterable[Bug]) -> set[str]:
    return {one.site for one in bugs}


def hidden(folder: Path, bugs: list[Bug], tokens: np.ndarray, **options: Any) -> list[Bug]:
    """Return the bugs without which the others give the same dump: nothing could find them.

    It is asked in float32, where what differs is no rounding; what half precision alone has is
    taken for seen.
    """
    bugs = [one for one in bugs if "float32" in one.dtypes]
    together = ports.dump(ports.load(folder, bugs, **options), tokens)
    unseen = []
    for one in bugs:
        others = [other for other in bugs if other is not one]
        without = ports.dump(ports.load(folder, others, **options), tokens)
        if moved(together, without) <= ROUNDING:
            unseen.append(one)
    return unseen


def moved(found: Dump, right: Dump) -> float:
    """Return how far the tap went that went furthest."""
    return max(distances(found, right).values())


def distances(found: Dump, right: Dump) -> dict[str, float]:
    """Return how far every tap went that both have; what is not a tap is not asked."""
    names = [name for name in right.keys() & found.keys() if not any(x in name for x in UNJUDGED)]
    return {name: distance(found[name], right[name]) for name in names}


def distance(found: np.ndarray, right: np.ndarray) -> float:
    """Return the root mean square of the difference in deviations of what is right.

    Another shape and numbers that are not finite count as far.
    """
    if found.shape != right.shape:
        return float("inf")
    right, found = right.astype(np.float64), found.astype(np.float64)
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.sqrt(np.mean((found - right) ** 2)) / (right.std() or 1))
