"""Rows that come and go side by side: each holds what a cache of its own would. By loop."""

import mlx.core as mx
import numpy as np
import pytest

from lockstep.fast import ops as mlx_ops
from lockstep.reference import ops
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.growing import STEP, Growing
from lockstep.reference.stores.slots import Slots

GROUPS, WIDTH, LAYERS = 2, 3, 2
KINDS = pytest.mark.parametrize("kind", [(np, ops), (mx, mlx_ops)], ids=["numpy", "mlx"])


class Text:
    """A text of random keys and values, and a cache of its own that holds its first tokens."""

    def __init__(self, seed: int, length: int, array, namespace):
        self.rng, self.array, self.ops = np.random.default_rng(seed), array, namespace
        zeros = np.zeros if array is np else mx.zeros
        self.cache = Cache(
            [(Growing(zeros), Growing(zeros)) for _ in range(LAYERS)], name="growing"
        )
        self.held = [[np.zeros((1, GROUPS, 0, WIDTH), np.float32)] * 2 for _ in range(LAYERS)]
        self.cache.positions.extend(np.arange(length)[None])
        for layer in range(LAYERS):
            self.cache.update(namespace, layer, *map(array.array, self.new(layer, length)))

    def new(self, layer: int, length: int) -> list[np.ndarray]:
        """Make keys and values of new tokens of a layer, and note them."""
        made = [self.rng.standard_normal((1, GROUPS, length, WIDTH), np.float32) for _ in range(2)]
        pairs = zip(self.held[layer], made, strict=True)
        self.held[layer] = [np.concatenate(pair, axis=2) for pair in pairs]
        return made

    @property
    def length(self) -> int:
        return self.held[0][0].shape[2]


def step(slots: Slots, texts: list[Text], array, namespace) -> None:
    """Give each text a token, and hold what the slots give against what each text has."""
    positions = slots.extend(slots.next(len(texts))[:, None])
    for layer in range(LAYERS):
        new = [text.new(layer, 1) for text in texts]
        keys, values = (array.array(np.concatenate([one[side] for one in new])) for side in (0, 1))
        found = slots.update(namespace, layer, keys, values)
        for row, text in enumerate(texts):
            assert positions[row].tolist() == [
                *range(text.length),
                *[-1] * (positions.shape[1] - text.length),
            ]
            for side in (0, 1):
                held = np.array(found[side])[row : row + 1, :, : text.length]
                assert (held == text.held[layer][side]).all(), (layer, row, side)


@KINDS
def test_rows_come_and_go(kind):
    """Texts of all lengths, one of them beyond the first room; rows leave first, last, between."""
    array, namespace = kind
    slots = Slots(3, np.zeros if array is np else mx.zeros)
    texts, rng = [], np.random.default_rng(1)
    for number in range(30):
        while len(texts) < 3:
            long = number > 8 and slots.room == STEP
            length = STEP - 1 if long else int(rng.integers(1, 9))
            texts.append(Text(number * 3 + len(texts), length, array, namespace))
            slots.join(namespace, texts[-1].cache)
        step(slots, texts, array, namespace)
        for row in rng.permutation(3)[: rng.integers(0, 3)]:
            if row < len(texts):
                slots.leave(int(row))
                texts[row] = texts[-1]
                texts.pop()
        if texts:
            step(slots, texts, array, namespace)
    assert slots.room == 2 * STEP
    assert all(one.shape == (3, GROUPS, 2 * STEP, WIDTH) for one in slots.arrays())
    assert len(slots.arrays()) == 2 * LAYERS


@KINDS
def test_a_text_of_its_own_is_not_written_to(kind):
    array, namespace = kind
    slots, text = Slots(2, np.zeros if array is np else mx.zeros), Text(0, 4, *kind)
    slots.join(namespace, text.cache)
    before = np.array(text.cache.state()[0][0][0]).copy()
    step(slots, [text], array, namespace)
    assert (np.array(text.cache.state()[0][0][0]) == before).all()


def test_what_is_refused():
    slots = Slots(1, np.zeros)
    text = Text(0, 2, np, ops)
    slots.join(ops, text.cache)
    with pytest.raises(ValueError, match="all of 1 rows are taken"):
        slots.join(ops, text.cache)
    with pytest.raises(ValueError, match="2 rows, but the cache holds 1"):
        slots.next(2)
    for wrong in ([[3]], [[2, 3]], [[2], [0]]):
        with pytest.raises(ValueError, match="each row takes its next token, and no other"):
            slots.extend(np.array(wrong))
    assert slots.lengths == [2]
