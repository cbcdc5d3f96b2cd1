"""Find tensors of ours that lie under another name in the port's file, by their values."""

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from lockstep.parity.before.figures import STEPS, grid, identical, near, on_grid, rms, wide
from lockstep.parity.before.own_tensors import OwnTensors, Shape
from lockstep.parity.naming.families import HOLE, families

SAMPLES = 61
Found = Mapping[str, str]  # our name -> the name of ours that it really holds


class Values:
    """Samples of every tensor of ours, read once for each shape that is asked for."""

    def __init__(self, own: OwnTensors):
        self.own = own
        self.samples: dict[Shape, dict[str, np.ndarray]] = {}

    def same_as(self, found: np.ndarray, but: str | None = None) -> str | None:
        """Return the one tensor of ours that holds these values, None if none or several do."""
        if found.ndim == 0 or found.size < 2:
            return None
        x = wide(found)
        sample, scale = sampled(x), rms(x)
        if not scale or not np.isfinite(scale) or x.std() == 0:
            return None
        limit = 2.0**-6 * scale
        close = [
            name
            for name, other in self.of(found.shape).items()
            if name != but and np.abs(other - sample).max() <= limit
        ]
        close = [name for name in close if same_values(found, self.own.read(name))]
        return close[0] if len(close) == 1 else None

    def of(self, shape: Shape) -> dict[str, np.ndarray]:
        if shape not in self.samples:
            names = [name for name, one in self.own.shapes.items() if one == shape]
            self.samples[shape] = {name: sampled(wide(self.own.read(name))) for name in names}
        return self.samples[shape]


def sampled(values: np.ndarray) -> np.ndarray:
    flat = values.reshape(-1)
    return flat[np.linspace(0, flat.size - 1, SAMPLES).astype(int)]


def same_values(found: np.ndarray, wanted: np.ndarray) -> bool:
    dtype = max((grid(found), grid(wanted)), key=list(STEPS).index)
    x, y = (on_grid(wide(array), dtype) for array in (found, wanted))
    return identical(x, y) or near(x, y, dtype)


def exchanged(held: Found) -> dict[tuple[str, str], list[str]]:
    """Group what is under a wrong name: (why, text) -> our names that hold something else."""
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    layers: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, other in held.items():
        (part, layer), (other_part, other_layer) = placed(name), placed(other)
        if part == other_part:
            layers[part].append((layer, other_layer))
            grouped["layers", ""].append(name)
        elif (spot := expert_of(part)) and (there := expert_of(other_part)) and (
            spot[0] == there[0] and layer == other_layer
        ):  # fmt: skip
            grouped["experts", spot[0]].append(name)
        else:
            grouped["tensors", " and ".join(sorted((part, other_part)))].append(name)
    return grouped


def placed(name: str) -> tuple[str, int]:
    """Split a name into its template and the number of its layer, -1 without one."""
    family = next(iter(families({name: ()}).values()))
    return family.template, (next(iter(family.shapes)) if HOLE in family.template else -1)


def expert_of(template: str) -> tuple[str, int] | None:
    """Split a template of a single expert's matrix into what all share and the expert."""
    words = template.split(".")
    for place, word in enumerate(words):
        if word.isdigit() and place and words[place - 1] == "experts":
            return ".".join([*words[:place], "*", *words[place + 1 :]]), int(word)
    return None


def layer_text(pairs: list[tuple[int, int]], count: int) -> str:
    """Say which layers hold which, and whether it is the order of text."""
    order = {mine: theirs for mine, theirs in pairs}
    shown = ", ".join(f"{a} holds {b}" for a, b in sorted(order.items())[:4])
    more = f" and {len(order) - 4} more" * (len(order) > 4)
    text_order = sorted(range(count), key=str)
    whole = [order.get(layer, layer) for layer in range(count)]
    sorted_as_text = ": they are sorted as text, 1, 10, 11, 2" * (whole == text_order)
    steps = Counter(b - a for a, b in order.items())
    moved = f": all moved by {next(iter(steps))}" * (len(steps) == 1 and len(order) > 2)
    return f"layer {shown}{more}{sorted_as_text or moved}"
