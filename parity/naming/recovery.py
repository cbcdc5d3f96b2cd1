"""Recover names that are a regular renaming of known ones: other words, separators, counting.

Names that differ in a layer number alone are one family. A family of theirs is one of ours if it
has the same layers, or of activations some of them, and fitting shapes, and its words mean that
part; or, of weights, if shapes leave nothing else. Whatever two families could claim, or could be
two, stays unmatched.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from lockstep.parity.naming.align import move_between
from lockstep.parity.naming.llama_cpp import family_of
from lockstep.parity.naming.names import is_tap
from lockstep.parity.naming.roles import parts_meant, wholes_meant

Shape = tuple[int, ...]
Fits = Callable[[Shape, Shape], bool]
Means = Callable[..., set[str]]  # the parts that words may mean
HOLE = "{layer}"
# Where a layer's number stands: behind a word for layers, else the first number that stands alone.
NAMED = re.compile(
    r"(?:^|(?<=[^A-Za-z]))(?:layers?|blocks?|blk|h|l|decoder_layers?|transformer_blocks?|resblocks)"
    r"[^A-Za-z0-9]?(?P<n>0|[1-9][0-9]{0,5})(?![0-9])",
    re.IGNORECASE,
)
ALONE = re.compile(r"(?:^|(?<=[^A-Za-z0-9]))(?P<n>0|[1-9][0-9]{0,5})(?![A-Za-z0-9])")
OURS = re.compile(r"(?:model\.layers|transformer\.h)\.\{layer\}\.?")
NO_ONE_KNOWS = (
    "neither layer 0 nor one behind the last is named: only a map says from what they are counted"
)
CAPPED = ("gemma4",)  # kinds of models whose logits are not what their head gives
ENDS = ("weight", "bias", "scales", "biases")


@dataclass(frozen=True)
class Family:
    """Names that are one but for the layer number; one name alone where there is no number."""

    template: str
    shapes: dict[int, Shape]
    names: dict[int, str]

    @property
    def layered(self) -> bool:
        return HOLE in self.template


@dataclass
class Recovery:
    """What was recovered: their name -> ours, lines for people, and what stayed unmatched."""

    names: dict[str, str] = field(default_factory=dict)
    plan: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        return {"names": self.names, "plan": self.plan, "unmatched": self.unmatched}


def recover(
    theirs: Mapping[str, Shape],
    ours: Mapping[str, Shape],
    *,
    fits: Fits = lambda found, wanted: found == wanted,
    by_shape: bool = False,
    some: bool = False,
) -> Recovery:
    """Match names of theirs with names of ours. Each name of either side is used once at most.

    `fits` says whether a shape of theirs may be one of ours. `by_shape` also matches families
    whose words say nothing, where each is the only one that fits the other; `some` those that lack
    some layers, where the rest says from what they are counted.
    """
    left, right = families(theirs), families(ours)
    offset = counted_from(left, right, some=some)
    candidates = {
        found.template: [
            wanted.template
            for wanted in right.values()
            if same_layers(found, wanted, offset, some=some)
            and all_fit(found, wanted, offset or 0, fits)
        ]
        for found in left.values()
    }
    matched = by_words(left, candidates)
    if by_shape:
        matched |= by_elimination(left, candidates, matched)
    return described(left, right, matched, offset)


def families(names: Mapping[str, Shape]) -> dict[str, Family]:
    """Group names that differ in a layer number alone, in their order."""
    found: dict[str, Family] = {}
    for name, shape in names.items():
        place = NAMED.search(name) or ALONE.search(name)
        number = int(place["n"]) if place else 0
        template = name[: place.start("n")] + HOLE + name[place.end("n") :] if place else name
        family = found.setdefault(template, Family(template, {}, {}))
        if number in family.shapes:  # a brace in a name of theirs
            continue
        family.shapes[number], family.names[number] = shape, name
    return found


def counted_from(
    left: Mapping[str, Family], right: Mapping[str, Family], *, some: bool = False
) -> int | None:
    """Return what their numbering adds: 1 if no layer is 0, and there are as many as ours.

    With `some` they may be fewer: counted from 0 if one is 0, from 1 if one is beyond our last.
    Of layers 1 and 3 nobody can say: None.
    """
    theirs = {number for one in left.values() if one.layered for number in one.shapes}
    ours = {number for one in right.values() if one.layered for number in one.shapes}
    if not some or not ours or not theirs or theirs >= ours:
        return int(bool(ours) and theirs == {number + 1 for number in ours})
    return 0 if 0 in theirs else 1 if max(theirs) == max(ours) + 1 else None


def same_layers(found: Family, wanted: Family, offset: int | None, *, some: bool = False) -> bool:
    """Tell whether their family has the layers of ours, or with `some` some of them."""
    if found.layered != wanted.layered or (found.layered and offset is None):
        return False
    numbers = {number + (offset or 0) * found.layered for number in wanted.shapes}
    return found.shapes.keys() <= numbers if some else found.shapes.keys() == numbers


def all_fit(found: Family, wanted: Family, offset: int, fits: Fits) -> bool:
    offset *= found.layered
    return all(fits(shape, wanted.shapes[n - offset]) for n, shape in found.shapes.items())


def by_words(left: Mapping[str, Family], candidates: Mapping[str, list[str]]) -> dict[str, str]:
    """Match families whose words mean one candidate that no other family's words mean.

    What is called as a whole module is means its last part, unless another is called that part.
    """
    matched: dict[str, str] = {}
    for means in (parts_meant, wholes_meant):
        taken = set(matched.values())
        meant = {
            template: [one for one in candidates[template] if says(family, one, means)]
            for template, family in left.items()
            if template not in matched
        }
        claims = [one for several in meant.values() for one in several]
        matched |= {
            template: several[0]
            for template, several in meant.items()
            if len(several) == 1 and claims.count(several[0]) == 1 and several[0] not in taken
        }
    return matched


def by_elimination(
    left: Mapping[str, Family], candidates: Mapping[str, list[str]], matched: Mapping[str, str]
) -> dict[str, str]:
    """Match what is left where shapes allow one partner in both directions.

    Names whose words mean a known part are not taken: they were refused for what they say.
    """
    taken = set(matched.values())
    rest = {
        template: [one for one in candidates[template] if one not in taken]
        for template in left
        if template not in matched
    }
    claims = [one for several in rest.values() for one in several]
    return {
        template: several[0]
        for template, several in rest.items()
        if len(several) == 1
        and claims.count(several[0]) == 1
        and not parts_meant(words_of(template), in_layer=left[template].layered)
    }


def says(family: Family, ours: str, means: Means) -> bool:
    """Tell whether the words of their family mean our family."""
    part, end = split_end(ours)
    if end != split_end(family.template)[1]:
        return False
    inner = OURS.sub("", part, count=1) if family.layered else part
    return inner in means(words_of(family.template), in_layer=family.layered)


def words_of(template: str) -> str:
    """Return what stands behind the layer number, or the whole, with `_` for every separator."""
    part = split_end(template)[0].rpartition(HOLE)[2]
    part = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part)
    return re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_").lower()


def split_end(name: str) -> tuple[str, str]:
    """Split what a tensor of a module is called from the module: `x.weight` is `x` and `weight`."""
    part, dot, end = name.rpartition(".")
    return (part, end) if dot and end in ENDS else (name, "")


def described(
    left: Mapping[str, Family],
    right: Mapping[str, Family],
    matched: Mapping[str, str],
    offset: int | None,
) -> Recovery:
    done = Recovery()
    for template, family in left.items():
        if template not in matched:
            done.unmatched += family.names.values()
            continue
        wanted = right[matched[template]]
        shift = (offset or 0) * family.layered
        done.names |= {name: wanted.names[n - shift] for n, name in family.names.items()}
        count = f" in {len(family.names)} layers" * family.layered
        done.plan.append(f"{template} taken for {wanted.template}{count}")
    if done.names:
        counting = f", their layers counted from {offset}" * bool(offset)
        done.plan.insert(0, f"{len(done.names)} names recovered by their pattern{counting}")
    if offset is None and right:
        done.plan.append(NO_ONE_KNOWS)
    return done


def recover_taps(
    names: Mapping[str, Shape], known: Mapping[str, Shape], taken: Iterable[str] = ()
) -> Recovery:
    """Recover the taps of a dump's names, given the taps of the model with their shapes.

    Names that mean a tap of this model's kind already are left out, and their taps (`taken`, too)
    are given to no other; what means a tap of another kind alone is a name like any.
    """
    kinds = {kind_of(tap) for tap in known}
    gone = {*taken, *(name for name in names if is_tap(name) and kind_of(name) in kinds)}
    rest = {name: shape for name, shape in names.items() if name not in gone}
    wanted = {tap: shape for tap, shape in known.items() if tap not in gone}
    if family_of(known) not in CAPPED and any(map(means_either, rest)):
        wanted.pop("lm_head", None)
    return recover(rest, wanted, fits=fits_tap, some=True)


def fits_tap(found: Shape, wanted: Shape) -> bool:
    """Tell whether a move leads to a tap's shape, or to that of the prompt's last token alone."""
    last = (*wanted[:1], 1, *wanted[2:])
    return any(move_between(found, shape) is not None for shape in (wanted, last))


def means_either(name: str) -> bool:
    """Tell whether a name may mean what is before a softcap and what is behind it."""
    return parts_meant(words_of(name), in_layer=False) >= {"lm_head", "logits"}


def kind_of(tap: str) -> str:
    """Return what the taps of one kind of model begin with: `model` or `transformer`."""
    return tap.partition(".")[0]
