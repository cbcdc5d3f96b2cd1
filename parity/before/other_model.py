"""Whether a dump seems to be of another model than the one that it is compared with."""

from collections.abc import Mapping

from lockstep.parity.naming.names import CACHED, is_tap, parted, tap_named
from lockstep.parity.naming.plan import known_taps
from lockstep.reference.checkpoint.checkpoint import Checkpoint

Shape = tuple[int, ...]
BY_LENGTH = (*CACHED, ".scores", ".probs")  # whose last axis is no width


def other_model(shapes: Mapping[str, Shape], checkpoint: Checkpoint) -> list[str]:
    """Return a doubt if most of the taps that a dump names are none of the model's, or too wide.

    A bug spoils some shapes; what fits in fewer than half of all is another checkpoint's. The
    search for bugs would take long, and find none that are true. Where nothing fits there is
    nothing to search, which is refused.
    """
    known = known_taps(checkpoint, length=1)
    named = {name: parted(tap_named(name))[1] for name in shapes if is_tap(tap_named(name))}
    wrong = [name for name, tap in named.items() if not fits(tap, shapes[name], known)]
    if not len(named) < 2 * len(wrong) < 2 * len(named):
        return []
    first = f"the first is {wrong[0]} {[*shapes[wrong[0]]]}"
    return [
        f"{len(wrong)} of {len(named)} taps of the dump are none of {checkpoint.path.name}, or of "
        f"another width, {first}: is it the checkpoint that was ported?"
    ]


def fits(tap: str, shape: Shape, known: Mapping[str, Shape]) -> bool:
    """Say whether a model has the tap, and its width or a multiple of it, with heads merged."""
    if tap not in known:
        return tap.endswith(CACHED)
    width = known[tap][-1]
    return tap.endswith(BY_LENGTH) or any(size and size % width == 0 for size in shape)
