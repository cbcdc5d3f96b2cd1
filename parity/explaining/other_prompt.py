"""Why nothing of a dump can be compared: names that nobody knows, numbers that are not real, a
prompt of another length, or axes in another order.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product

import numpy as np

from lockstep.parity.explaining.steps.steps import Joined
from lockstep.parity.graph import Graph
from lockstep.parity.naming.align import Shape, move_between
from lockstep.parity.naming.names import parted
from lockstep.parity.naming.plan import known_taps
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.errors import InputError, show

MOST = 8  # sizes of axes that are tried as a number of tokens: the commonest
MOST_ROWS = 64  # prompts that a batch may have
NO_NAME = "no tensor has the name and the shape of a tap of {model}"
OTHER_KIND = "its numbers are {dtype}, but should be float64, float32, float16 or bfloat16"
OTHER_LENGTH = "its tensors are of {there} tokens, but the prompt of {said}"
OTHER_BATCH = "its tensors are of {batch} prompts of {there} tokens, but one of {said} is known"
OTHER_ORDER = "most of its tensors have their features before their tokens, (B, D, L)"
SAY_ORDER = "write them as (B, L, D)"
SAY_ALL = "say every id that the port was fed: in --tokens, or in its metadata"
SAY_BATCH = "keep one row and say --tokens, or write a trace that says its `batch`"


def nothing_compared(sides: Joined, graph: Graph, checkpoint: Checkpoint) -> InputError:
    """Return the refusal of a dump of which no tensor fits: what is to be said otherwise."""
    dump, said = sides.dump, sides.lengths[0]
    if kind := of_other_kind(sides, graph):
        name, dtype = kind
        return InputError(
            dump.path, f"nothing was compared: {OTHER_KIND.format(dtype=dtype)}", name
        )
    one_prompt = dump.batch is None and "positions" not in dump.about
    found = of_other_size(dump.shapes, checkpoint, said) if one_prompt else None
    if features_first(dump.shapes, checkpoint, said):
        what, where = OTHER_ORDER, SAY_ORDER
    elif found is None:
        name, shape = next(iter(dump.shapes.items()))
        what = NO_NAME.format(model=checkpoint.path)
        where = f"see `lockstep taps`, and --map; its first is {show(name, 24)} {[*shape]}"
    else:
        batch, there = found
        told, where = (OTHER_LENGTH, SAY_ALL) if batch == 1 else (OTHER_BATCH, SAY_BATCH)
        what = told.format(batch=batch, there=there, said=said)
    return InputError(dump.path, f"nothing was compared: {what}", where)


def of_other_kind(sides: Joined, graph: Graph) -> tuple[str, np.dtype] | None:
    """Return the first tensor of which the dtype alone is wrong, None if there is none."""
    for tap, names in sides.parts.items():
        shape = graph.shapes[graph.taps[tap]]
        for number, name in enumerate(names):
            dtype = sides.dump.parts(name).dtype
            if dtype.kind in "iubc" and sides.fits(tap, shape, number):
                return name, dtype
    return None


def features_first(shapes: Mapping[str, Shape], checkpoint: Checkpoint, length: int) -> bool:
    """Say whether most tensors have the shape of a tap of one prompt, but for their last axes."""
    wanted = {*known_taps(checkpoint, length=length).values()}
    turned = [(*shape[:-2], *shape[:-3:-1]) in wanted for shape in shapes.values()]
    return 2 * sum(turned) > len(turned)


def of_other_size(
    shapes: Mapping[str, Shape], checkpoint: Checkpoint, length: int
) -> tuple[int, int] | None:
    """Return of how many prompts, and of how many tokens each, most tensors of a dump are.

    None if that is one prompt of `length` tokens, or if nobody can say. Shapes alone decide, so it
    does not matter what the tensors are called.
    """
    theirs = Counter(shape for name, shape in shapes.items() if not parted(name)[0])
    sizes = Counter(size for shape in theirs.elements() for size in set(shape))
    batches = {1, *(shape[0] for shape in theirs if shape and 1 < shape[0] <= MOST_ROWS)}
    # Of one token are logits of the last alone, of a prompt of any length.
    lengths = [size for size, _ in sizes.most_common(MOST) if size > 1]
    best, most = (1, length), count_of_fitting(theirs, checkpoint, 1, length)
    for batch, one in product(sorted(batches), lengths):
        if (count := count_of_fitting(theirs, checkpoint, batch, one)) > most:
            best, most = (batch, one), count
    return best if best != (1, length) and 2 * most > theirs.total() else None


def count_of_fitting(
    theirs: Counter[Shape], checkpoint: Checkpoint, batch: int, length: int
) -> int:
    """Return how many tensors have the shape of a tap for a prompt of this size."""
    wanted = {*known_taps(checkpoint, length=length, batch=batch).values()}
    return sum(count for shape, count in theirs.items() if fits_one(shape, wanted))


def fits_one(shape: Shape, wanted: Iterable[Shape]) -> bool:
    return any(move_between(shape, one) is not None for one in wanted)
