"""Which module is packed how: a packing for all, and rules for those that are called otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS
from lockstep.reference.checkpoint.packed import Packing
from lockstep.reference.checkpoint.quantization import AFFINE, BITS, GROUP_SIZES, MODES

KEEP = "keep"
USUAL_BITS, USUAL_GROUP = 4, 64
# A router decides for whole tokens, and is small: mlx-lm packs it finely whatever else is asked.
ROUTERS = ("mlp.gate", "router.proj")
FINE = Packing(8, 64, AFFINE)
MIXED = {"mixed_2_6": (2, 6), "mixed_3_4": (3, 4), "mixed_3_6": (3, 6), "mixed_4_6": (4, 6)}


@dataclass(frozen=True)
class Rule:
    """Modules whose path has `pattern` as a run of its parts are packed so, or None: kept."""

    pattern: str
    packing: Packing | None

    def fits(self, module: str) -> bool:
        return fnmatchcase(f".{module}.", f"*.{self.pattern}.*")


@dataclass(frozen=True)
class Mixed:
    """mlx-lm's recipes of two widths, which follow llama.cpp's Q4_K_M in what they keep wide.

    More bits for the head, and for `v_proj` and `down_proj` in the first and the last eighth of the
    layers and in each third one between.
    """

    high: Packing

    def is_wide(self, module: str, layers: int) -> bool:
        if "lm_head" in module:
            return True
        number = next((int(part) for part in module.split(".") if part.isdecimal()), 0)
        eighth = layers // 8
        chosen = number < eighth or number >= 7 * layers // 8 or (number - eighth) % 3 == 2
        return chosen and ("v_proj" in module or "down_proj" in module)


@dataclass(frozen=True)
class Recipe:
    """The first rule that fits decides; a module that none fits is packed as `default` says.

    `rules` are what a person asked for, `mixed` what a named recipe of mlx-lm adds for layers.
    """

    default: Packing
    rules: tuple[Rule, ...] = ()
    mixed: Mixed | None = None

    def packing(self, names: Sequence[str], layers: int) -> Packing | None:
        """Return how a module of a model with so many layers is packed, None if it is kept.

        It goes by all its `names`: a table that is also a tied head has two.
        """
        for rule in self.rules:
            if any(map(rule.fits, names)):
                return rule.packing
        module = names[0]
        if self.mixed is not None:
            return self.mixed.high if self.mixed.is_wide(module, layers) else self.default
        return FINE if any(Rule(router, None).fits(module) for router in ROUTERS) else self.default

    def check(self, modules: Collection[str]) -> None:
        """Raise InputError for a rule that fits none of these modules."""
        for rule in self.rules:
            if not any(rule.fits(module) for module in modules):
                ends = sorted({module.rpartition(".")[2] for module in modules})
                what = f"fits no weight that can be packed; these are {', '.join(ends)}"
                raise InputError(show(rule.pattern, 60), what)
        if self.mixed is not None and not any("down_proj" in module for module in modules):
            raise InputError("--recipe", "needs a model with down_proj: it has its widths by that")


def recipe_of(
    bits: int | None, group_size: int | None, mode: str,
    keep: Iterable[str] = (), rules: Iterable[Rule] = (),
) -> Recipe:  # fmt: skip
    """Return the recipe that the words of a command line mean. Raises InputError."""
    kept = tuple(Rule(one, None) for one in keep)
    return Recipe(packing_of(bits, group_size, mode), (*kept, *rules))


def mixed(
    name: str, group_size: int | None, keep: Iterable[str] = (), rules: Iterable[Rule] = ()
) -> Recipe:
    """Return one of mlx-lm's recipes, with rules that go before it. Raises InputError."""
    low, high = (packing_of(bits, group_size, AFFINE) for bits in MIXED[name])
    kept = tuple(Rule(one, None) for one in keep)
    return Recipe(low, (*kept, *rules), Mixed(high))


def packing_of(bits: int | None, group_size: int | None, mode: str) -> Packing:
    """Return a packing that MLX has; what is not said is what it takes by itself."""
    if mode not in MODES:
        raise InputError(show(mode, 40), f"is no mode of packing: one of {', '.join(MODES)}")
    usual = MINIFLOATS.get(mode, (USUAL_BITS, USUAL_GROUP))
    chosen = usual[0] if bits is None else bits, usual[1] if group_size is None else group_size
    if mode in MINIFLOATS and chosen != usual:
        what = f"has {usual[0]} bits in groups of {usual[1]}, not {chosen[0]} in {chosen[1]}"
        raise InputError(mode, what)
    if mode == AFFINE and (chosen[0] not in BITS or chosen[1] not in GROUP_SIZES):
        what = f"bits are {joined(BITS)}, in groups of {joined(GROUP_SIZES)}"
        raise InputError(f"{chosen[0]} bits in groups of {chosen[1]}", what)
    return Packing(*chosen, mode)


def parse_packing(text: str) -> Packing | None:
    """Read `keep`, `BITS`, `BITS/GROUP` or a mode's name. Raises InputError."""
    if text == KEEP:
        return None
    if text in MODES:
        return packing_of(None, None, text)
    bits, slash, group = text.partition("/")
    if not bits.isdecimal() or group.isdecimal() != bool(slash) or len(text) > 8:
        what = "says no packing: write keep, BITS, BITS/GROUP or one of "
        raise InputError(show(text, 40), what + ", ".join(MODES[1:]))
    return packing_of(int(bits), int(group) if group else None, AFFINE)


def joined(numbers: Iterable[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}"
