"""Every kind of cache on every backend: what it holds, how it is trimmed, and how it branches.

The namespaces `reference` and `fast` promise one result, so every test runs on all three.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import reference
from lockstep.fast.backends.cpu import CpuBackend
from lockstep.fast.caches.held_codes import HeldCodes
from lockstep.fast.caches.make import make_cache as make_fast
from lockstep.parity.cli.generate import CACHES
from lockstep.reference.caches.make import make_cache as make_reference
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores import growing
from lockstep.reference.stores.kinds import EXACT, KINDS, ROTATING, CacheOptions
from tests.draws import normal
from tests.ops_backends import DTYPES, to_mlx, to_numpy
from tests.parity.conftest import MODELS
from tests.sampled import sampled
from tests.tolerances import assert_same_bits

SIDES = ("reference", "cpu", "mlx")
WHOLE = (*EXACT, *ROTATING)  # hold what they were given, as long as it is not too much
ROOM = 700
SEAMS = [[0, 1, 0, 3], [255, 1, 1], [256, 1], [3, 300, 1, 200], [257, 255]]


def options_of(kind: str, count: int) -> CacheOptions:
    """Make room for so many tokens where a kind has to be told; a rotating one turns after them."""
    return CacheOptions(
        room=count if kind == "preallocated" else None,
        size=count if kind in ROTATING else None,
        keep=2 if kind in ROTATING else None,
    )


class Side:
    """A cache on one backend: NumPy goes in, NumPy comes out."""

    def __init__(self, name: str, kind: str, *, room: int | None = None, layers: int = 2, width=32):
        config = SimpleNamespace(num_hidden_layers=layers, num_key_value_heads=2, head_dim=width)
        options = options_of(kind, room or ROOM)
        self.native = to_mlx if name == "mlx" else np.asarray
        if name == "reference":
            self.ops = reference.ops
            self.cache = make_reference(kind, config, options=options)
            return
        from lockstep.fast.backends.mlx import MlxBackend

        backend = CpuBackend("float32") if name == "cpu" else MlxBackend("float32", None)
        self.ops = backend.ops
        self.cache = make_fast(kind, config, options=options, backend=backend)

    def step(self, keys, values, layer=None) -> list[np.ndarray]:
        """Note the positions, feed both layers, and return what the last one holds."""
        start = self.cache.positions.next(len(keys))
        self.cache.positions.extend(start[:, None] + np.arange(keys.shape[2]))
        for number, sign in enumerate((1, -1)):
            parts = (self.native(sign * part) for part in (keys, values))
            held = self.cache.update(self.ops, number, *parts)
        return [-to_numpy(whole(part)) for part in held]

    def branch(self) -> "Side":
        other = object.__new__(Side)
        other.native, other.ops, other.cache = self.native, self.ops, self.cache.branch()
        return other


def whole(held):
    """Return keys or values that a cache gave, decoded where they are codes."""
    return held.decoded() if isinstance(held, HeldCodes) else held


@pytest.fixture(params=SIDES)
def name(request) -> str:
    return request.param


def test_the_command_line_knows_the_kinds():
    assert CACHES == KINDS


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("steps", SEAMS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_holds_all_tokens_in_order(name, kind, steps, dtype):
    """By loop: every step gives the slices of one long array, to the bit."""
    keys, values = (normal(i, 2, 3, sum(steps), 4, dtype=DTYPES[dtype]) for i in range(2))
    side, stop = Side(name, kind), 0
    for new in steps:
        start, stop = stop, stop + new
        held = side.step(keys[:, :, start:stop], values[:, :, start:stop])
        assert_same_bits(held[0], keys[:, :, :stop])
        assert_same_bits(held[1], values[:, :, :stop])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_at_a_time_or_all_at_once(name, kind):
    """By law: a token is held by itself, so how they come makes no difference, to the bit."""
    keys, values = normal(0, 2, 2, 9, 64), normal(1, 2, 2, 9, 64)
    whole = Side(name, kind).step(keys, values)
    side = Side(name, kind)
    for token in range(9):
        one = slice(token, token + 1)
        parts = side.step(keys[:, :, one], values[:, :, one])
    assert_same_bits(parts[0], whole[0])
    assert_same_bits(parts[1], whole[1])


operations = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 5)),
        st.tuples(st.just("trim"), st.integers(0, 4)),
        st.tuples(st.just("branch"), st.booleans()),
    ),
    max_size=9,
)


@sampled(10, "turbo3-mse-cpu")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(operations=operations, room=st.integers(1, 4))
def test_any_steps_trims_and_branches(side, kind, operations, room):
    """By loop: beside every cache goes a list of the tokens that it should hold.

    `room` makes buffers grow by a few tokens, so that every seam is met.
    """
    draws, width, name = iter(range(1000)), 32, side
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "STEP", room)
        sides = [(Side(name, kind, room=60), np.zeros((1, 2, 0, width), np.float32))]
        for what, count in operations:
            side, tokens = sides[-1]
            if what == "branch":
                sides.append((side.branch(), tokens))
                if count:  # go on with the original, and look at the branch in the end
                    sides[-2], sides[-1] = sides[-1], sides[-2]
            elif what == "trim":
                count = min(count, tokens.shape[2])
                side.cache.trim(count)
                sides[-1] = (side, tokens[:, :, : tokens.shape[2] - count])
            else:
                new = normal(next(draws), 1, 2, count, width)
                side.step(new, 2 * new)
                sides[-1] = (side, np.concatenate([tokens, new], axis=2))
        last = normal(next(draws), 1, 2, 1, width)
        for side, tokens in reversed(sides):
            wanted = np.concatenate([tokens, last], axis=2)
            held = side.step(last, 2 * last)
            fresh = Side(name, kind, room=60).step(wanted, 2 * wanted)
            assert_same_bits(held[0], fresh[0])
            assert_same_bits(held[1], fresh[1])
            assert side.cache.positions.array.tolist() == [[*range(wanted.shape[2])]]


def test_a_branch_shares_what_it_can(name):
    """By law: until one of the two writes, there is one array."""
    for kind in KINDS:
        side = Side(name, kind)
        side.step(*[normal(0, 1, 2, 3, 32)] * 2)
        other = side.branch()
        mine, yours = side.cache.keys[0].arrays(), other.cache.keys[0].arrays()
        assert mine and all(one is another for one, another in zip(mine, yours, strict=True))


@pytest.mark.parametrize("kind", WHOLE)
def test_what_was_returned_stays_as_it_was(name, kind):
    """By law: a later step writes behind what is held, in place and after growth."""
    side, first = Side(name, kind), normal(0, 1, 2, 3, 4)
    held = side.step(first, 2 * first)
    for new in (1, 300):
        side.step(*[normal(1, 1, 2, new, 4)] * 2)
    assert_same_bits(held[0], first)
    assert_same_bits(held[1], 2 * first)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("count", [10, 256])
def test_one_cache_has_one_dtype(name, kind, count):
    """By law: another dtype is refused, also where there is room to cast it in place."""
    tokens = normal(0, 1, 1, count, 4)
    for dtype in (np.float16, DTYPES["bfloat16"]):
        side = Side(name, kind)
        side.step(tokens, tokens)
        before = [np.array(to_numpy(one)) for one in side.cache.arrays()]
        with pytest.raises(ValueError, match=r"but the cache holds .*float32"):
            side.step(*[tokens[:, :, :1].astype(dtype)] * 2)
        for one, past in zip(side.cache.arrays(), before, strict=True):
            assert_same_bits(to_numpy(one), past)


@pytest.mark.parametrize("kind", WHOLE)
def test_keys_and_values_may_differ_in_width(name, kind):
    """By hand: nothing ties the two together but their tokens."""
    side = Side(name, kind)
    for total in (3, 6):
        held = side.step(normal(0, 1, 2, 3, 4), normal(1, 1, 2, 3, 6))
        assert [part.shape for part in held] == [(1, 2, total, 4), (1, 2, total, 6)]


def test_most_tokens_are_written_in_place(name):
    """By hand: the first token makes room for 256, and the 257th for 256 more."""
    side, token, sizes = Side(name, "growing"), normal(0, 1, 1, 1, 4), []
    for _ in range(257):
        side.step(token, token)
        sizes.append(side.cache.nbytes)
    each = 2 * 2 * 4 * 4  # bytes of a token: keys and values, 2 layers, 4 dimensions in float32
    assert sizes == [256 * each] * 256 + [512 * each]


def test_a_gap_is_refused(name):
    """By hand: a token that is noted and never written leaves a gap before the next one."""
    for kind in KINDS:
        side = Side(name, kind)
        side.cache.positions.extend(np.array([[0, 1]]))
        with pytest.raises(ValueError, match="new tokens at 2, but the cache holds 0"):
            side.step(*[normal(0, 1, 2, 1, 32)] * 2)


def test_more_cannot_be_forgotten_than_is_held(name):
    side = Side(name, "growing")
    side.step(*[normal(0, 1, 2, 3, 4)] * 2)
    for count in (4, -1):
        with pytest.raises(ValueError, match=f"{count} tokens to forget, but the cache holds 3"):
            side.cache.trim(count)
    side.cache.trim(3)
    assert side.cache.positions.length == 0


def test_a_full_buffer_refuses_and_overwrites_nothing(name):
    """By hand: room for 3 takes 3, not 4; and what is there stays."""
    side, tokens = Side(name, "preallocated", room=3), normal(0, 1, 2, 3, 4)
    side.step(tokens, tokens)
    with pytest.raises(InputError, match="cache: 4 tokens, but room was made for 3"):
        side.step(tokens[:, :, :1], tokens[:, :, :1])
    assert_same_bits(np.abs(to_numpy(side.cache.keys[0].buffer)), np.abs(tokens))


def test_a_refused_token_is_not_counted(name):
    """By hand: room for 4, 4 held, 1 more refused: 4 are counted, and after a trim it goes on."""
    side, tokens = Side(name, "preallocated", room=4), normal(0, 1, 2, 5, 4)
    side.step(tokens[:, :, :4], tokens[:, :, :4])
    for _ in range(2):
        with pytest.raises(InputError, match="cache: 5 tokens, but room was made for 4"):
            side.step(tokens[:, :, 4:], tokens[:, :, 4:])
        assert side.cache.positions.length == 4
        assert {store.held for store in side.cache.keys} == {4}
    side.cache.trim(1)
    held = side.step(tokens[:, :, 4:], tokens[:, :, 4:])
    assert_same_bits(held[0], tokens[:, :, [0, 1, 2, 4]])


def test_a_store_refuses_what_it_has_no_room_for(name):
    """By law: the count is what refuses first; the store does not rely on it."""
    side, tokens = Side(name, "preallocated", room=3), normal(0, 1, 2, 4, 4)
    store = side.cache.keys[0]
    with pytest.raises(InputError, match="cache: 4 tokens, but room was made for 3"):
        store.append(side.ops, side.native(tokens), 0)
    assert store.held == 0 and store.buffer is None


def test_one_buffer_is_made_and_kept(name):
    """By hand: as many bytes for one token as for all, where there is room for 8."""
    side = Side(name, "preallocated", room=8)
    for _ in range(8):
        side.step(*[normal(0, 1, 2, 1, 4)] * 2)
        assert side.cache.nbytes == 2 * 2 * (2 * 8 * 4) * 4


def test_the_prefill_goes_to_the_slots_that_single_steps_go_to(name):
    """By law: a cursor that stands still during a prefill would put every token in slot 0."""
    tokens = normal(0, 1, 2, 5, 4)
    prefill, single = (Side(name, "preallocated", room=6) for _ in range(2))
    prefill.step(tokens, tokens)
    for one in range(5):
        single.step(*[tokens[:, :, one : one + 1]] * 2)
    buffers = [to_numpy(side.cache.keys[0].buffer) for side in (prefill, single)]
    assert_same_bits(*buffers)
    assert_same_bits(buffers[0][:, :, :5], tokens)


@pytest.mark.parametrize(
    ("kind", "room", "what"),
    [("paged", None, "kind='paged', but should be one of concatenating, growing, "),
     ("preallocated", None, "room=None, but a preallocated cache needs 1 or more"),
     ("preallocated", 0, "room=0, but a preallocated cache needs 1 or more"),
     ("growing", 5, "room=5, but a cache that is growing makes its own")],
)  # fmt: skip
def test_what_cannot_be_made_is_refused(kind, room, what):
    with pytest.raises(InputError, match=what):
        reference.load(MODELS / "tied_bfloat16").make_cache(kind, room=room)


@pytest.mark.parametrize(
    ("kind", "recent", "what"),
    [("int8", 3, "recent=3, but a cache that is int8 treats all tokens alike"),
     ("turbo4", -1, "recent=-1, but should be 0 or more")],
)  # fmt: skip
def test_what_is_no_count_of_recent_tokens_is_refused(kind, recent, what):
    with pytest.raises(InputError, match=what):
        reference.load(MODELS / "tied_bfloat16").make_cache(kind, recent=recent)


@pytest.mark.parametrize(
    ("kind", "size", "keep", "what"),
    [("rotating", None, None, "size=None, but one that is rotating needs 1 or more"),
     ("rotating-mlx-lm", 0, 0, "size=0, but one that is rotating-mlx-lm needs 1 or more"),
     ("rotating", 4, 4, "keep=4, but a cache of 4 keeps 0 to 3"),
     ("rotating", 4, -1, "keep=-1, but a cache of 4 keeps 0 to 3"),
     ("int8", 4, None, "size=4, keep=None, but a cache that is int8 keeps all that is seen"),
     ("growing", None, 1, "size=None, keep=1, but a cache that is growing keeps all")],
)  # fmt: skip
def test_what_cannot_rotate_is_refused(kind, size, keep, what):
    with pytest.raises(InputError, match=what):
        reference.load(MODELS / "tied_bfloat16").make_cache(kind, size=size, keep=keep)
