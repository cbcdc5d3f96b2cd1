"""TurboQuant's codes on all three sides: levels, lengths, and estimates that are right on average.

By law: the conditions of an optimal quantiser, averages over rotations, the distortion that the
paper has; by loop: the bits of a word; by witness: our sides among each other.
"""

import math

import mlx.core as mx
import numpy as np
import pytest

from lockstep import reference
from lockstep.fast.backends import backend_named
from lockstep.fast.caches import turbo_cpu, turbo_mlx
from lockstep.fast.caches.make import make_cache as make_fast
from lockstep.reference.caches import turbo
from lockstep.reference.caches.make import make_cache as make_reference
from lockstep.reference.stores.kinds import TURBO_BITS, TURBO_WIDTHS, UNBIASED, CacheOptions
from lockstep.reference.stores.turbo_tables import LEVELS, SEED, tables
from tests.draws import normal
from tests.ops_backends import DTYPES, to_mlx, to_numpy
from tests.parity.conftest import DEMO
from tests.reference.caches.test_models_with_caches import FOLDERS, SIDES, drawn, host
from tests.sampled import sampled

CODERS = {"reference": (turbo, np.asarray), "cpu": (turbo_cpu, np.asarray),
          "mlx": (turbo_mlx, to_mlx)}  # fmt: skip
NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)
NORMAL = {1: 0.3634, 2: 0.1175, 3: 0.03455, 4: 0.00950}  # Max 1960: error of N(0, 1) by bits


@pytest.fixture(params=CODERS)
def coder(request):
    return CODERS[request.param]


def integral(function, low: float, high: float) -> float:
    """Integrate by Gauss and Legendre, over eight pieces."""
    edges = np.linspace(low, high, 9)
    half, middle = np.diff(edges)[:, None] / 2, (edges[1:] + edges[:-1])[:, None] / 2
    return float((function(half * NODES + middle) * WEIGHTS * half).sum())


@pytest.mark.parametrize("width", TURBO_WIDTHS)
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_levels_are_the_optimum(width, bits):
    """By law: each level is the mean of what is nearest to it; and the error is that of a normal.

    The density of a coordinate of a random unit vector is (1 - x^2)^((D - 3) / 2).
    """
    levels, power = tables(width).levels(bits), (width - 3) / 2
    assert len(levels) == 2**bits and (np.diff(levels) > 0).all()
    top = min(1.0, 12 / math.sqrt(width))
    edges, error = [0, *((levels[1:] + levels[:-1]) / 2)[2 ** (bits - 1) :], top], 0.0
    for low, high, level in zip(edges, edges[1:], levels[2 ** (bits - 1) :], strict=False):
        mass = integral(lambda x: (1 - x * x) ** power, low, high)
        assert integral(lambda x: x * (1 - x * x) ** power, low, high) / mass == pytest.approx(
            level, rel=1e-7
        )
        error += integral(lambda x, at=level: (x - at) ** 2 * (1 - x * x) ** power, low, high)
    error *= width / integral(lambda x: (1 - x * x) ** power, 0, top)
    assert error == pytest.approx(NORMAL[bits], rel=4 / width)


@pytest.mark.parametrize("width", TURBO_WIDTHS)
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_terms_make_levels(width, bits):
    """By loop: of each code, the sum over sets of bits; sets of an even number have no part."""
    table = tables(width)
    terms, levels = turbo_cpu.terms(table, bits), table.levels(bits)
    for code in range(2**bits):
        signs = [1 if code >> bit & 1 else -1 for bit in range(bits)]
        products = [
            math.prod(signs[bit] for bit in range(bits) if chosen >> bit & 1)
            for chosen in range(2**bits)
        ]
        assert terms @ products == pytest.approx(levels[code], rel=1e-12)
    even = [chosen for chosen in range(2**bits) if chosen.bit_count() % 2 == 0]
    assert np.abs(terms[even]).max() < 1e-15


def test_one_bit_by_hand():
    """The mean of |x|: Gamma(d / 2) / (sqrt(pi) Gamma((d + 1) / 2))."""
    for width in TURBO_WIDTHS:
        mean = math.exp(math.lgamma(width / 2) - math.lgamma((width + 1) / 2)) / math.sqrt(math.pi)
        assert LEVELS[width][0][0] == pytest.approx(mean, rel=1e-7)


@pytest.mark.parametrize("width", TURBO_WIDTHS)
def test_the_rotation_turns_and_turns_back(coder, width):
    """By law: lengths and angles stay, and the way back is the same signs in reverse order."""
    module, native = coder
    table, x = tables(width), normal(0, 5, width)
    y = to_numpy(module.turned_units(native(x), table)[0])
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(y @ y.T, units @ units.T, atol=2e-6)
    assert np.abs(y - units).max() > 0.1
    one = turbo.turned_units(x, table)[0]
    np.testing.assert_allclose(y, one, atol=1e-6)
    np.testing.assert_allclose(turbo.turned_back(one, table), units, atol=2e-6)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_words_hold_planes_of_bits(coder, bits):
    """By loop: bit j of code i is bit i % 32 of word j * D / 32 + i // 32."""
    module, _ = coder
    codes = np.random.default_rng(bits).integers(0, 2**bits, (3, 64)).astype(np.uint8)
    wide = mx.array(codes).astype(mx.uint32) if module is turbo_mlx else codes
    words = to_numpy(module.packed(wide, bits))
    assert words.shape == (3, bits * 2) and words.dtype == np.uint32
    for row, place, bit in np.ndindex(3, 64, bits):
        word = int(words[row, bit * 2 + place // 32])
        assert word >> place % 32 & 1 == int(codes[row, place]) >> bit & 1
    if module is turbo_mlx:  # which looks levels up without the codes
        table = tables(64)
        read = to_numpy(module.looked_up(mx.array(words), bits, table))
        np.testing.assert_array_equal(read, table.levels(bits).astype(np.float32)[codes])
    else:
        assert module.unpacked(words, bits).tolist() == codes.tolist()


@pytest.mark.parametrize("width", TURBO_WIDTHS)
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_lose_what_the_paper_says(coder, width, bits, dtype):
    """By law: the squared error of a normal coordinate, within what 400 vectors scatter."""
    module, native = coder
    table, x = tables(width), (3 * normal(bits, 400, width)).astype(DTYPES[dtype])
    words, lengths = module.coded(native(x), bits, table)
    assert words.shape == (400, bits * width // 32) and lengths.shape == (400, 1)
    made = module.decoded(words, lengths, bits, table, native(x).dtype)
    assert to_numpy(made).dtype == x.dtype
    wide = x.astype(np.float64)
    error = ((to_numpy(made).astype(np.float64) - wide) ** 2).sum() / (wide**2).sum()
    assert error == pytest.approx(NORMAL[bits], rel=0.08 + 3 / width)


@sampled(0)
def test_a_key_is_right_on_average_and_a_value_is_not(coder):
    """By law: over 600 projections the mean of <q, k> is true; codes alone stay beside it.

    The scatter is sqrt(pi / 2 D) |r| |q| for one projection, so 4 of their standard errors.
    """
    module, native = coder
    query, key = normal(1, 1, 64)[0], normal(2, 1, 64)[0]
    key = key + 0.5 * query
    true, found, plain = float(query @ key), [], []
    one = native(key[None])
    for seed in range(600):
        table = tables(64, seed)
        made = module.decoded_keys(*module.coded_keys(one, 3, table), 3, table, one.dtype)
        found.append(float(to_numpy(made)[0] @ query))
        codes = module.coded(one, 2, table)
        plain.append(float(to_numpy(module.decoded(*codes, 2, table, one.dtype))[0] @ query))
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found) - true) < 4 * error
    left = math.sqrt(NORMAL[2]) * np.linalg.norm(key)
    scatter = math.sqrt(math.pi / (2 * 64)) * left * np.linalg.norm(query)
    assert np.std(found) == pytest.approx(scatter, rel=0.2)
    assert abs(np.mean(plain) - true) > 8 * np.std(plain) / math.sqrt(len(plain))


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_sides_read_each_others_codes(bits):
    """By witness: words alike but for what rounding decides, and one meaning of each."""
    table, x = tables(128), normal(bits, 2, 3, 50, 128)
    made = {name: (module, native, module.coded_keys(native(x), bits, table))
            for name, (module, native) in CODERS.items()}  # fmt: skip
    words = [to_numpy(codes[0]) for _, _, codes in made.values()]
    assert (words[0] != words[1]).mean() < 1e-3 and (words[0] != words[2]).mean() < 1e-3
    codes = [to_numpy(part) for part in made["reference"][2]]
    values = []
    for module, native, _ in made.values():
        parts = [mx.array(part) if module is turbo_mlx else part for part in codes]
        values.append(to_numpy(module.decoded_keys(*parts, bits, table, native(x).dtype)))
    np.testing.assert_allclose(values[1], values[0], atol=2e-5)
    np.testing.assert_allclose(values[2], values[0], atol=2e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_head_alone(coder, bad):
    module, native = coder
    x, table = normal(0, 3, 64), tables(64)
    x[1, 5], x[2] = bad, 0
    for read, codes in (
        (module.decoded, module.coded(native(x), 3, table)),
        (module.decoded_keys, module.coded_keys(native(x), 3, table)),
    ):
        made = to_numpy(read(*codes, 3, table, native(x).dtype))
        assert np.isfinite(made[0]).all() and not np.isfinite(made[1]).any()
        assert not made[2].any()  # zeros stay zeros


BEFORE, AFTER = [-1, -1, 1, 1, -1, 1, -1, -1], [1, 1, 1, 1, -1, -1, -1, 1]
PROJECTION = [0.3679513187940484, -0.5729061164041628, 1.805713308610071]


def test_the_tables_are_what_they_were():
    """By hand: files hold codes that mean something with these tables alone."""
    table = tables(32)
    assert SEED == 2504
    assert table.before[:8].tolist() == BEFORE and table.after[8:16].tolist() == AFTER
    np.testing.assert_allclose(table.projection[0, :3], PROJECTION, rtol=1e-12)


@pytest.mark.parametrize("kind", TURBO_BITS)
@pytest.mark.parametrize("side", SIDES)
def test_bytes_by_hand(side, kind):
    """The demo's heads are of 64: words of 8 bits a byte, 2 or 3 lengths in float32 a pair."""
    model = SIDES[side](DEMO)
    cache = model.make_cache(kind, recent=0)
    model.forward(drawn(model, count=40), cache=cache)
    assert cache.nbytes == 40 * 4096  # the prompt saw itself
    model.forward(drawn(model, count=1), cache=cache)
    room = 40 if side == "reference" else 256
    pair = 2 * 64 // 8 * TURBO_BITS[kind] + (3 if kind in UNBIASED else 2) * 4
    assert cache.nbytes == 4 * 2 * (room * pair) + 4096


class Gemma:
    """As in Gemma 4: heads of 256 in one layer, of 512 in the other."""

    num_hidden_layers, layer_types = 2, ("sliding_attention", "full_attention")
    sliding_window = 16

    @staticmethod
    def heads_of(layer: int) -> tuple[int, int]:
        return 1, (256, 512)[layer]


@pytest.mark.parametrize("side", SIDES)
def test_heads_that_it_cannot_turn_are_kept_and_told(side):
    """By hand: 512 is what crashed SwiftLM. The layer is as it came, in every bit, and one line."""
    options, ops, native = CacheOptions(recent=1), reference.ops, np.array
    if side == "reference":
        cache = make_reference("turbo4", Gemma, options=options)
    else:
        backend = backend_named(side, dtype="float32", device=None)
        cache = make_fast("turbo4", Gemma, options=options, backend=backend)
        ops, native = backend.ops, backend.put
    said = "1 of 2 layers are kept as they are: heads of 512 are not of 32, 64, 128 or 256"
    assert cache.warnings == [said]
    for start in range(4):
        cache.positions.extend(np.array([[start]]))
        for layer, width in enumerate((256, 512)):
            new = normal(start, 1, 1, 1, width)
            keys, values = cache.update(ops, layer, native(new), native(2 * new))
    whole = np.concatenate([normal(start, 1, 1, 1, 512) for start in range(4)], axis=2)
    assert (to_numpy(keys) == whole).all() and (to_numpy(values) == 2 * whole).all()
    assert [len(store.state(4)) for store in (*cache.keys, *cache.values)] == [4, 1, 3, 1]


@pytest.mark.parametrize("side", SIDES)
def test_a_model_of_which_no_head_can_be_turned_gives_what_it_gives(side):
    """By law: all is kept, so the bits are those of a cache that loses nothing."""
    model = SIDES[side](FOLDERS["gpt2"])
    caches = [model.make_cache("turbo3", recent=0), model.make_cache()]
    assert caches[0].warnings and not caches[1].warnings
    tokens = drawn(model)
    for part in (tokens[:, :7], tokens[:, 7:]):
        one, other = (host(model, model.forward(part, cache=cache)) for cache in caches)
        assert (one == other).all()
