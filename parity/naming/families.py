"""Group names that differ in a layer number alone, and take their words apart."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

Shape = tuple[int, ...]
HOLE = "{layer}"
# Where a layer's number stands: behind a word for layers, else the first number that stands alone.
FOR_LAYERS = (
    r"(?:^|(?<=[^A-Za-z]))(?:layers?|blocks?|blk|h|l|decoder_layers?|transformer_blocks?|resblocks)"
    r"[^A-Za-z0-9]?"
)
NAMED = re.compile(FOR_LAYERS + r"(?P<n>0|[1-9][0-9]{0,5})(?![0-9])", re.IGNORECASE)
NAMED_STEM = re.compile(FOR_LAYERS + "$", re.IGNORECASE)
ALONE = re.compile(r"(?:^|(?<=[^A-Za-z0-9]))(?P<n>0|[1-9][0-9]{0,5})(?![A-Za-z0-9])")
ENDS = ("weight", "bias", "scales", "biases")
# What Flax writes behind the path of a module, for what it returned.
CALL, FIRST_CALL = "__call__", re.compile(r"(^|_)call(_0)?$")
MODULES = re.compile(r"(self_)?(attn|attention|mha)|mlp|ffn|ff|feed_forward|moe|experts")


@dataclass(frozen=True)
class Family:
    """Names that are one but for the layer number; one name alone where there is no number."""

    template: str
    shapes: dict[int, Shape]
    names: dict[int, str]

    @property
    def layered(self) -> bool:
        return HOLE in self.template

    @property
    def stem(self) -> str:
        """What stands before the number."""
        return self.template.partition(HOLE)[0]

    @property
    def named(self) -> bool:
        """Whether a word for layers stands before the number."""
        return self.layered and NAMED_STEM.search(self.stem) is not None

    @cached_property
    def words(self) -> str:
        return words_of(self.template)


def families(names: Mapping[str, Shape]) -> dict[str, Family]:
    """Group names that differ in a layer number alone, in their order."""
    found: dict[str, Family] = {}
    for name, shape in names.items():
        path = name.partition(CALL)[0]  # behind that stands which call it was
        place = NAMED.search(path) or ALONE.search(path)
        number = int(place["n"]) if place else 0
        template = name[: place.start("n")] + HOLE + name[place.end("n") :] if place else name
        family = found.setdefault(template, Family(template, {}, {}))
        if number in family.shapes:  # a brace in a name of theirs
            continue
        family.shapes[number], family.names[number] = shape, name
    return found


def words_of(template: str) -> str:
    """Return what stands behind the layer number, or the whole, with `_` for every separator.

    What `attention/__call__` gave is `attention_out`: alone the word may be the stream behind it.
    """
    words = plain(split_end(template)[0].rpartition(HOLE)[2])
    if CALL not in template:
        return words
    words = FIRST_CALL.sub("", words)
    return words + "_out" * (MODULES.fullmatch(words) is not None)


def plain(part: str) -> str:
    """Return what stands in a name in small letters, with `_` for every separator."""
    part = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part)
    return re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_").lower()


def split_end(name: str) -> tuple[str, str]:
    """Split what a tensor of a module is called from the module: `x.weight` is `x` and `weight`."""
    part, dot, end = name.rpartition(".")
    return (part, end) if dot and end in ENDS else (name, "")
