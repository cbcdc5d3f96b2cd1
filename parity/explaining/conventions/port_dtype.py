"""In which precision a port computed, by what most of its values show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from lockstep.parity.dumps.dtype import stored_and_shown
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.grouping import LAYER
from lockstep.parity.naming.names import CACHED, parted
from lockstep.reference.checkpoint.errors import show

SAMPLED = 24  # tensors that are looked at
MANY = 1 / 4  # of those looked at; fewer are copies of what the checkpoint stores in half precision
COARSER = (
    "many tensors are stored as {kind}, {first} first, but the port is judged as {dtype}: if the "
    "file alone rounds them, store what was computed"
)
ADVICE = ", or pass --dtype {kind}"
WIDE, HALVES = "float32", {"bfloat16", "float16"}
HEADS = ("logits", "lm_head")
WIDE_STREAM = "its stream is stored as float32, all else as {half}: judged as {half}"
SHOWN = "stored as {stored}, but most values are {shown}: judged as that"


def port_dtype(sides: Alignment, taps: Mapping[str, object]) -> tuple[str, list[str]]:
    """Return the dtype that a dump says, or that most of its tensors show, and a line if so.

    A router's probabilities are float32 in a bfloat16 port, and a bfloat16 port is often stored
    as float32; so neither one tensor nor how it is stored decides.
    """
    said = sides.dump.about.get("dtype")
    if said in EPSILONS:
        return said, []
    stored, shown = most_kinds(sides, sampled(sides, taps))
    half = half_but_for_streams(sides, taps) if shown == WIDE else None
    if half is not None:
        return half, [WIDE_STREAM.format(half=half)]
    return shown, [SHOWN.format(stored=stored, shown=shown)] if stored != shown else []


def most_kinds(sides: Alignment, names: Sequence[str]) -> tuple[str, str]:
    """Return the dtypes that most tensors are stored in, and that most show: the finest of equals.

    Both are float32 where there is none of them.
    """
    found = [stored_and_shown(sides.dump.read(name)) for name in names]
    kinds = Counter(shown for _, shown in found if shown in EPSILONS)
    if not kinds:
        return WIDE, WIDE
    shown = max(kinds, key=lambda kind: (kinds[kind], -EPSILONS[kind]))
    return Counter(kept for kept, _ in found).most_common(1)[0][0], shown


def half_but_for_streams(sides: Alignment, taps: Mapping[str, object]) -> str | None:
    """Return the half precision in which all is stored that is no sum of the stream, nor logits.

    Such a port keeps its stream in float32, and computes in half precision.
    """
    inside = [tap for tap in sides.names if tap in taps and not is_stream(tap)]
    names = [sides.names[tap] for tap in inside if not tap.endswith(CACHED)]
    kinds = {sides.dump.parts(name).dtype.name for name in names}
    return next(iter(kinds)) if len(kinds) == 1 and kinds <= HALVES else None


def is_stream(tap: str) -> bool:
    path = parted(tap)[1]
    ends = path.endswith((".residual", "embed_tokens", ".wte", ".wpe", ".drop"))
    return bool(LAYER.fullmatch(path)) or ends or path in HEADS


def stored_coarser(
    sides: Alignment, taps: Mapping[str, object], dtype: str, *, said: bool
) -> list[str]:
    """Return a line if many tensors are stored in coarser numbers than the port is judged in.

    Each is then off by its rounding, which bugs may seem to explain. A dtype that a person `said`
    is not asked for again.
    """
    kinds = {name: sides.dump.parts(name).dtype.name for name in sampled(sides, taps)}
    coarser = {
        name: kind for name, kind in kinds.items() if EPSILONS.get(kind, 0) > EPSILONS[dtype]
    }
    if not coarser or len(coarser) < MANY * len(kinds):
        return []
    kind, first = max(coarser.values(), key=EPSILONS.__getitem__), show(next(iter(coarser)), 48)
    line = COARSER if said else COARSER + ADVICE
    return [line.format(kind=kind, first=first, dtype=dtype)]


def sampled(sides: Alignment, taps: Mapping[str, object]) -> list[str]:
    """Return the names of some tensors, from all over the dump; what a cache holds it may round."""
    wanted = [tap for tap in sides.names if tap in taps and not tap.endswith(CACHED)]
    names = [sides.names[tap] for tap in wanted]
    return names[:: max(len(names) // SAMPLED, 1)]
