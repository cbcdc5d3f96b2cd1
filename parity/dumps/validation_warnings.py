"""What makes a right dump useless: each check returns lines, none where all is well.

Nothing here refuses a file. A check looks at what `contents.measured` noted of the tensors.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from lockstep.parity.dumps.contents import Found
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.naming.align import align
from lockstep.parity.naming.names import parted
from lockstep.reference.checkpoint.dtypes import FLOATS
from lockstep.reference.checkpoint.errors import InputError, show

LAYER = re.compile(r"(model\.layers|transformer\.h)\.(\d+)")
# What depends on the whole context. A token that is fed twice is embedded alike, and so is what
# the first layer makes of it before its attention.
CONTEXTUAL = re.compile(
    r"logits|lm_head|model\.norm|transformer\.ln_f|(model\.layers|transformer\.h)\.\d+"
)
# A router's choices are integers; nothing else that is judged is.
INTEGERS_TOO = re.compile(r".*\.routing")


def warnings_of(dump: Dump, tensors: Sequence[Found]) -> list[str]:
    """Return a line for each thing that will stand in the way of a comparison."""
    checks = (
        *(about_tokens(dump), about_dtype(dump), about_rows(dump, tensors)),
        *(about_steps(dump, tensors), about_names(dump, tensors), about_kinds(tensors)),
        *(about_numbers(tensors), same_layers(tensors), same_steps(dump, tensors)),
    )
    return [line for check in checks for line in check]


def about_tokens(dump: Dump) -> Iterator[str]:
    """Raises: InputError if what is said of a batch is nonsense."""
    if dump.batch is not None:
        later = dump.rows("batch_decoded")
        if dump.padding and later is not None and len(later) != len(dump.batch):
            yield f"batch_decoded has {len(later)} rows, but batch has {len(dump.batch)}"
    elif dump.tokens is None:
        start = "no tokens in __metadata__" if dump.is_trace else "a bare dump that says no tokens"
        yield f"{start}: explain needs --tokens, diff --model a trace beside it"
    elif not dump.tokens:
        yield "tokens in __metadata__ is an empty list, so the prompt is not known"


def about_dtype(dump: Dump) -> Iterator[str]:
    said = dump.about.get("dtype")
    if said is None and dump.is_trace:
        yield "no dtype in __metadata__: a port in half precision is judged as it is stored"
    elif said is not None and said not in EPSILONS:
        allowed = ", ".join(EPSILONS)
        yield f"dtype in __metadata__ is {show(said, 40)}, but should be one of {allowed}"


def about_rows(dump: Dump, tensors: Sequence[Found]) -> Iterator[str]:
    """A tap of the prompt has a row for each token, on whichever axis."""
    count = len(dump.tokens or []) or max(map(len, dump.batch or [[]]))
    taps = [one for one in tensors if one.tap and not one.step and one.size] if count else []
    odd = [one for one in taps if not any(size % count == 0 for size in one.shape)]
    if odd:
        first = f"{show(odd[0].name, 48)} has shape {list(odd[0].shape)}"
        yield f"{some(odd, taps)} have no axis for the {count} tokens: {first}"


def about_steps(dump: Dump, tensors: Sequence[Found]) -> Iterator[str]:
    """Steps count up from 1, and each was fed one token."""
    steps = sorted({one.step for one in tensors} - {0})
    missing = sorted(set(range(1, steps[-1])) - set(steps)) if steps else []
    if missing:
        yield f"step.{missing[0]}/ is missing, but there is step.{steps[-1]}/"
    if steps and dump.tokens is not None and len(dump.fed) != steps[-1]:
        yield (
            f"decoded in __metadata__ has {len(dump.decoded)} ids, "
            f"but the last step is step.{steps[-1]}/"
        )


def about_names(dump: Dump, tensors: Sequence[Found]) -> Iterator[str]:
    unknown = [one for one in tensors if one.tap is None]
    if len(unknown) == len(tensors):
        first = f"{some(unknown, tensors)}, such as {show(unknown[0].name, 48)}"
        yield f"no table knows any name, {first}: rename them, or give --map"
    elif unknown:
        names = ", ".join(show(one.name, 48) for one in unknown[:3])
        yield f"no table knows {some(unknown, tensors)}: {names}"
    try:
        align(dump)
    except InputError as error:
        yield f"{error.what} ({error.where})"


def about_kinds(tensors: Sequence[Found]) -> Iterator[str]:
    taps = [one for one in tensors if one.tap and not INTEGERS_TOO.fullmatch(one.tap)]
    odd = [one for one in taps if one.dtype not in FLOATS]
    if odd:
        hint = "; the bits of bfloat16 are called BF16" if odd[0].dtype in ("U16", "I16") else ""
        first = f"{show(odd[0].name, 48)} is {odd[0].dtype}"
        yield f"{some(odd, taps)} are of no dtype that activations have: {first}{hint}"


def about_numbers(tensors: Sequence[Found]) -> Iterator[str]:
    floats = [one for one in tensors if one.nan is not None and one.size]
    zero = [one for one in floats if one.zeros == one.size]
    nowhere = [one for one in floats if (one.nan or 0) + (one.infinite or 0) == one.size]
    partly = [one for one in floats if one.nan and one not in nowhere]
    empty = [one for one in tensors if not one.size]
    for kind, which in (
        ("hold nothing but zeros", zero),
        ("hold no finite number", nowhere),
        ("hold NaN among their numbers", partly),
        ("are empty", empty),
    ):
        if which:
            yield f"{some(which, tensors)} {kind}, the first is {show(which[0].name, 48)}"


def same_layers(tensors: Sequence[Found]) -> Iterator[str]:
    """Two layers never compute the same bits: a buffer was kept that is written over."""
    seen: dict[tuple[str, bytes], Found] = {}
    for one in telling(tensors):
        path = parted(one.tap or "")[1]
        if not LAYER.match(path):
            continue
        kind = f"{one.step} {LAYER.sub('', path)}"
        other = seen.setdefault((kind, one.digest), one)
        if other is not one:
            both = f"{show(other.name, 48)} and {show(one.name, 48)}"
            yield f"{both} hold the same values: copy a buffer before it is used again"
            return


def same_steps(dump: Dump, tensors: Sequence[Found]) -> Iterator[str]:
    """What depends on the context changes with each step, unless one id is fed all along."""
    fed = {*(dump.tokens or []), *dump.decoded}
    if len(fed) == 1:
        return
    seen: dict[tuple[str, bytes], list[Found]] = defaultdict(list)
    for one in telling(tensors):
        path = parted(one.tap or "")[1]
        if one.step and CONTEXTUAL.fullmatch(path):
            seen[path, one.digest].append(one)
    for same in seen.values():
        if len(same) > 1:
            both = f"{show(same[0].name, 48)} and {show(same[1].name, 48)}"
            yield f"{both} hold the same values: was the step run, and its output copied?"
            return


def telling(tensors: Sequence[Found]) -> Iterator[Found]:
    """Yield the taps in which it means something that two are alike: not NaN or nought alone."""
    for one in tensors:
        held = one.tap and one.nan is not None and one.size > 1
        if held and one.size not in (one.zeros, one.nan):
            yield one


def some(which: Sequence[Found], all_: Sequence[Found]) -> str:
    """Return `2 of 9 tensors`."""
    return f"{len(which)} of {len(all_)} tensors"
