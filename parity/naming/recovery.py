"""Recover names that are a regular renaming of known ones: other words, separators, counting.

Names that differ in a layer number alone are one family. A family of theirs is one of ours if it
has the same layers, or of activations some of them behind a word for layers, and fitting shapes,
and its words mean that part; or, of weights, if shapes leave nothing else. Whatever two families
could claim, or could be two, stays unmatched.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from lockstep.parity.naming.align import move_between
from lockstep.parity.naming.counting import (
    Fits,
    all_fit,
    counted_alike,
    counted_from,
    is_whole,
)
from lockstep.parity.naming.families import Family, Shape, families, plain, split_end, words_of
from lockstep.parity.naming.llama_cpp import family_of
from lockstep.parity.naming.names import is_tap
from lockstep.parity.naming.roles import BARE, is_stream, parts_meant, told_outright, wholes_meant

Means = Callable[..., frozenset[str]]  # the parts that words may mean
OURS = re.compile(r"(?:model\.layers|transformer\.h)\.\{layer\}\.?")
NO_ONE_KNOWS = "nothing says from what layers are counted in other names: a map does (--map FILE)"
OF_ONE_TOKEN = ("lm_head", "logits")  # of which who generates keeps the last token's alone
CAPPED = ("gemma4",)  # kinds of models whose logits are not what their head gives


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
) -> Recovery:
    """Match names of theirs with names of ours. Each name of either side is used once at most.

    `fits` says whether a shape of theirs may be one of ours. `by_shape` also matches families
    whose words say nothing, where each is the only one that fits the other.
    """
    left, right = families(theirs), families(ours)
    offset, fits = counted_alike([*left.values()], [*right.values()]), cache(fits)
    candidates = {
        found.template: [
            wanted.template
            for wanted in right.values()
            if is_whole(found, wanted, offset) and all_fit(found, wanted, offset, fits)
        ]
        for found in left.values()
    }
    matched = by_words(left, right, candidates)
    if by_shape:
        matched |= by_elimination(left, candidates, matched)
    return described(left, right, matched, offset)


def recover_some(
    theirs: Mapping[str, Shape], ours: Mapping[str, Shape], *, fits: Fits, zero: bool
) -> Recovery:
    """Match names of activations, which may lack some layers, by their words alone.

    `zero`: they can be counted from 0 alone, as ours are.
    """
    left, right, fits = families(theirs), families(ours), cache(fits)
    pairs = meant_pairs(left, right)
    offset = counted_from(pairs, fits, zero=zero)
    spoken = {found.stem for found, _ in pairs if found.words}
    candidates: dict[str, list[str]] = {template: [] for template in left}
    told = True
    for found, wanted in pairs:
        firsts = (0, 1) if offset is None and found.layered else (offset or 0,)
        if any(stands(found, wanted, first, spoken, fits) for first in firsts):
            told &= len(firsts) == 1
            candidates[found.template] += [wanted.template] * (len(firsts) == 1)
    done = described(left, right, by_words(left, right, candidates), offset or 0)
    done.plan += [NO_ONE_KNOWS] * (not told)
    return done


def stands(found: Family, wanted: Family, first: int, spoken: set[str], fits: Fits) -> bool:
    """Tell whether their family may be ours by its layers and shapes.

    Of some layers alone it is if a word for layers stands before the number, and it is a part of
    one, or a stream beside named parts (`spoken`: what stands before the numbers of such). Logits
    may be of the prompt's last token alone.
    """
    if wanted.template in OF_ONE_TOKEN and fits(found.shapes[0], one_token(wanted.shapes[0])):
        return True
    part = found.named and (bool(found.words) or found.stem in spoken)
    return (part or is_whole(found, wanted, first)) and all_fit(found, wanted, first, fits)


def meant_pairs(
    left: Mapping[str, Family], right: Mapping[str, Family]
) -> list[tuple[Family, Family]]:
    """Return families of theirs with those of ours that their words mean.

    A bare `h.0` is a stream of the layers only where `h.0.attn.wq` says that `h` are layers.
    """
    pairs = [
        (found, wanted)
        for found in left.values()
        for wanted in right.values()
        if any(says(found, wanted.template, means) for means in (parts_meant, wholes_meant))
    ]
    spoken = {found.stem for found, _ in pairs if found.words}
    return [
        (found, wanted)
        for found, wanted in pairs
        if found.words or plain(found.stem) not in BARE or found.stem in spoken
    ]


def by_words(
    left: Mapping[str, Family], right: Mapping[str, Family], candidates: Mapping[str, list[str]]
) -> dict[str, str]:
    """Match families whose words mean one candidate that no other family's words mean.

    What is told outright goes before all, and one of all layers before those of some. What is
    called the output of a module is that of its last part, unless another is called that part.
    """
    matched: dict[str, str] = {}
    for means in (told_outright, parts_meant, wholes_meant):
        taken = set(matched.values())
        meant = {
            template: [one for one in candidates[template] if says(family, one, means)]
            for template, family in left.items()
            if template not in matched
        }
        # All layers or not, what is meant: by whom.
        claims = Counter((len(left[template].shapes) == len(right[one].shapes), one)
                         for template, several in meant.items() for one in several)  # fmt: skip
        for template, several in meant.items():
            if len(several) != 1 or several[0] in taken:
                continue
            whole = len(left[template].shapes) == len(right[several[0]].shapes)
            if claims[whole, several[0]] == 1 and (whole or not claims[True, several[0]]):
                matched[template] = several[0]
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
    claims = Counter(one for several in rest.values() for one in several)
    return {
        template: several[0]
        for template, several in rest.items()
        if len(several) == 1
        and claims[several[0]] == 1
        and not parts_meant(left[template].words, in_layer=left[template].layered)
    }


def says(family: Family, ours: str, means: Means) -> bool:
    """Tell whether the words of their family mean our family."""
    part, end = split_end(ours)
    if end != split_end(family.template)[1]:
        return False
    inner = OURS.sub("", part, count=1) if family.layered else part
    if family.layered and not family.words:
        return not inner and is_stream(plain(family.stem))
    return inner in means(family.words, in_layer=family.layered)


def described(
    left: Mapping[str, Family],
    right: Mapping[str, Family],
    matched: Mapping[str, str],
    offset: int,
) -> Recovery:
    done = Recovery()
    for template, family in left.items():
        if template not in matched:
            done.unmatched += family.names.values()
            continue
        wanted = right[matched[template]]
        shift = offset * family.layered
        done.names |= {name: wanted.names[n - shift] for n, name in family.names.items()}
        count = f" in {len(family.names)} layers" * family.layered
        done.plan.append(f"{template} taken for {wanted.template}{count}")
    if done.names:
        counting = f", their layers counted from {offset}" * bool(offset)
        several = len(done.names) > 1
        said = "names recovered by their pattern" if several else "name recovered by its pattern"
        done.plan.insert(0, f"{len(done.names)} {said}{counting}")
    return done


def recover_taps(
    names: Mapping[str, Shape],
    known: Mapping[str, Shape],
    taken: Iterable[str] = (),
    *,
    own: Iterable[str] = (),
) -> Recovery:
    """Recover the taps of a dump's names, given the taps of the model with their shapes.

    Names that mean a tap of this model's kind already are left out, and their taps (`taken` by a
    map or the dump's `own`, too) are given to no other; what means a tap of another kind alone is
    a name like any. Beside own ones with layers, others are counted from 0 or not at all.
    """
    kinds = {kind_of(tap) for tap in known}
    own = {*own, *(name for name in names if is_tap(name) and kind_of(name) in kinds)}
    gone = {*taken, *own}
    rest = {name: shape for name, shape in names.items() if name not in gone}
    wanted = {tap: shape for tap, shape in known.items() if tap not in gone}
    if family_of(known) not in CAPPED and any(map(means_either, rest)):
        wanted.pop("lm_head", None)
    numbered = any(family.layered for family in families(dict.fromkeys(own, ())).values())
    return recover_some(rest, wanted, fits=fits_tap, zero=numbered)


def fits_tap(found: Shape, wanted: Shape) -> bool:
    """Tell whether a move that loses nothing leads to a tap's shape."""
    return move_between(found, wanted) is not None


def one_token(shape: Shape) -> Shape:
    return (*shape[:1], 1, *shape[2:])


def means_either(name: str) -> bool:
    """Tell whether a name may mean what is before a softcap and what is behind it."""
    return parts_meant(words_of(name), in_layer=False) >= {"lm_head", "logits"}


def kind_of(tap: str) -> str:
    """Return what the taps of one kind of model begin with: `model` or `transformer`."""
    return tap.partition(".")[0]
