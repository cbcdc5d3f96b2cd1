"""Stretched and partial rotary positions gone wrong: by formula, by loop, on small models."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.faults import rope_llama3, rope_scaling
from lockstep.parity.faults.listed_divisors import blend_of
from lockstep.parity.faults.turns import Turns
from lockstep.parity.graph import Graph, Value
from lockstep.parity.graph.stretched import lengths_of, stretched
from lockstep.reference.ops.rope_frequencies_llama3 import rope_frequencies_llama3
from tests.parity.faults.hand_made import call, graph_of, variant, wrong
from tests.parity.faults.planted import check_in_every_way, check_shows, variants, world

FAULTS = (*rope_scaling.FAULTS, *rope_llama3.FAULTS)
NAMES = (
    "gemma4/sparse", "gemma4/dense", "llama/biased_llama3", "llama/qwen2_yarn",
    "llama/llama_dynamic", "llama/llama_longrope", "linear", "yarn without a factor",
    "yarn from afar", "yarn, lone mscale", "longrope, short", "longrope with a factor",
    "llama/llama_dynamic, decoded", "longrope, outgrown, decoded",
)  # fmt: skip
DIMS, THETA, LENGTH = 8, 100.0, 6
X = np.random.default_rng(5).standard_normal((1, 2, LENGTH, DIMS))


BATCHED = "there is no batch here"
HIDDEN = {
    f"{id}[by the longest row of a batch]": BATCHED
    for id in ("rope-dynamic-ntk", "rope-longrope-always-long")
}


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_shows(fault, name):
    check_shows(fault, name, NAMES, HIDDEN)


@pytest.mark.parametrize(("fault", "name"), variants(FAULTS))
def test_a_variant_rounds_in_every_way(fault, name):
    check_in_every_way(fault, name, NAMES)


@pytest.mark.parametrize("base", [2, 10])
def test_yarns_factor_by_another_logarithm(base):
    graph = world("llama/qwen2_yarn").graph
    rewrite = variant("rope-yarn-attn-factor", f"always 0.1 log{base}(s) + 1")
    ropes = [one for one in graph.calls if one.op == "rope"]
    stretch = graph.config.rope_scaling.factor
    expected = 0.1 * np.log(stretch) / np.log(base) + 1
    for one in ropes:
        new = rewrite(one, graph)
        assert new is not None and new.options["factor"] == pytest.approx(expected, rel=1e-12)


def turn(op: str, *lengths: np.ndarray, **options) -> Graph:
    return graph_of(
        call(0, op, *lengths, theta=THETA, dims=DIMS, **options),
        call(1, "scale", X, by=1.0),
        call(2, "rope", Value(1), np.arange(LENGTH)[None], Value(0), factor=1.0,
             place="self_attn.q_rope", layer=0),
        max_position_embeddings=64,
    )  # fmt: skip


def turned(frequencies, first, second, factor: float = 1.0) -> np.ndarray:
    """Turn number first[j] with number second[j]; leave the others."""
    out = X.copy()
    for p in range(LENGTH):
        for f, one, two in zip(frequencies, first, second, strict=True):
            c, s = factor * np.cos(p * f), factor * np.sin(p * f)
            out[0, :, p, one] = X[0, :, p, one] * c - X[0, :, p, two] * s
            out[0, :, p, two] = X[0, :, p, two] * c + X[0, :, p, one] * s
    return out


def halves(frequencies, factor: float = 1.0) -> np.ndarray:
    return turned(frequencies, range(4), range(4, 8), factor)


def base(width: int = DIMS, theta: float = THETA) -> np.ndarray:
    return np.array([theta ** (-2 * j / width) for j in range(DIMS // 2)])


PARTIAL = {"op": "rope_frequencies_proportional", "partial_rotary_factor": 0.5}
YARN = {
    "op": "rope_frequencies_yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 64, "truncate": True,
}  # fmt: skip
RAMP = np.array([0, 1, 2, 3]) / 3  # from pair 0, which goes round 10 times, to pair 3
# Pair 0 goes round 16 / 2 pi times, which is between 1 and 4; the others less than once.
SHARE = (16 / (2 * np.pi) - 1) / 3
LLAMA3 = {
    "op": "rope_frequencies_llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("id", "name", "options", "expected"),
    [
        ("rope-proportional-missing", "the whole head turns", PARTIAL, lambda: halves(base())),
        ("rope-proportional-missing", "a narrower head", PARTIAL,
         lambda: turned(base(4)[:2], (0, 1), (2, 3))),
        ("rope-proportional-missing", "halves of the part that turns", PARTIAL,
         lambda: turned(base()[:2], (0, 1), (2, 3))),
        ("rope-partial-denominator", "", PARTIAL, lambda: turned(base(4)[:2], (0, 1), (4, 5))),
        ("rope-global-linear-scale-missing", "", {"op": "rope_frequencies_linear", "factor": 4.0},
         lambda: halves(base())),
        ("rope-linear-scale-inverted", "", {"op": "rope_frequencies_linear", "factor": 4.0},
         lambda: halves(base() * 4)),
        ("rope-llama3-scaling-missing", "the blend left as it is", LLAMA3,
         lambda: halves(base() / [1, 8, 8, 8])),
        ("rope-llama3-scaling-missing", "the blend divided", LLAMA3, lambda: halves(base() / 8)),
        ("rope-llama3-scaling-missing", "the blend the other way round", LLAMA3,
         lambda: halves(base() * [1 - SHARE + SHARE / 8, 1 / 8, 1 / 8, 1 / 8])),
        ("rope-yarn-scaling-missing", "the ramp the other way round", YARN,
         lambda: halves(base() * (RAMP + (1 - RAMP) / 4))),
        ("rope-llama3-scaling-missing", "not at all", LLAMA3, lambda: halves(base())),
        ("rope-llama3-scaling-missing", "every pair divided", LLAMA3, lambda: halves(base() / 8)),
    ],
)  # fmt: skip
def test_by_loop(id, name, options, expected):
    np.testing.assert_allclose(wrong(turn(**options), variant(id, name)), expected(), atol=1e-13)


def test_dynamic_growth_by_formula():
    """48 tokens where 16 were trained on, s = 2: growth 6, not 5; base times 6^(8/6)."""
    options = {"factor": 2.0, "original_max_position_embeddings": 16}
    graph = turn("rope_frequencies_dynamic", np.array([48]), **options)
    found = wrong(graph, variant("rope-dynamic-ntk", "growth s T / M"))
    grown = THETA * 6.0 ** (8 / 6)
    np.testing.assert_allclose(found, halves(base(theta=grown)), atol=1e-13)
    found = wrong(graph, variant("rope-dynamic-ntk", "base times s"))
    np.testing.assert_allclose(found, halves(base(theta=2 * THETA)), atol=1e-13)


@pytest.mark.parametrize(("name", "growth"), [("s M", 7.0), ("2 M", 4.0)])
def test_one_base_for_all_texts_by_formula(name: str, growth: float):
    """s = 3, by whatever text: 3 * 3 - 2 is the growth of s M tokens, 3 * 2 - 2 that of 2 M."""
    grown = base(theta=THETA * growth ** (8 / 6))
    bug = variant("rope-dynamic-ntk", f"one base for all texts, of {name} tokens")
    for tokens in (5, 48):
        options = {"factor": 3.0, "original_max_position_embeddings": 16}
        graph = turn("rope_frequencies_dynamic", np.array([tokens]), **options)
        np.testing.assert_allclose(wrong(graph, bug), halves(grown), atol=1e-13)


def test_tables_of_longrope():
    tables = {"short_factor": (1.0, 2.0, 3.0, 4.0), "long_factor": (5.0, 6.0, 7.0, 8.0)}
    graph = turn("rope_frequencies_longrope", np.array([9]), **tables,
                 original_max_position_embeddings=16)  # fmt: skip
    found = wrong(graph, variant("rope-longrope-always-long", "always long"))
    np.testing.assert_allclose(found, halves(base() / [5, 6, 7, 8]), atol=1e-13)
    always_short = variant("rope-longrope-always-long", "always short")
    np.testing.assert_allclose(
        wrong(graph, always_short), halves(base() / [1, 2, 3, 4]), atol=1e-13
    )


BLEND = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(("theta", "dims", "length"), [(5e5, 128, 8192), (THETA, DIMS, 16)])
def test_divisors_that_a_file_lists_say_how_long_the_first_texts_were(theta, dims, length):
    """By law: what llama3 makes of a length is read back from it, from float32 too."""
    head = {"theta": theta, "dims": dims}
    plain = theta ** (-np.arange(0, dims, 2) / dims)
    right = BLEND | head | {"original_max_position_embeddings": length}
    exact = plain / rope_frequencies_llama3(**right)
    for divisors in (exact, exact.astype(np.float32).astype(float)):
        assert blend_of(listed(head, divisors)) == pytest.approx(right, rel=1e-6)
    for other in (1.01 * divisors, divisors[::-1], 0 * divisors, 0 * divisors + 8):
        assert blend_of(listed(head, other)) is None
    other = BLEND | {"high_freq_factor": 5.0}
    divisors = plain / rope_frequencies_llama3(**right | other)
    assert blend_of(listed(head, divisors)) is None


def listed(head, divisors) -> Turns:
    both = {name: tuple(divisors.tolist()) for name in ("short_factor", "long_factor")}
    return Turns("rope_frequencies_longrope", head | both)


def test_the_blend_of_a_file_that_lists_divisors():
    """By hand: the first two pairs turn 2.5 and 0.8 times in 16 tokens, 10 and 3.2 in 64."""
    divisors = tuple((base() / llama3(16)).tolist())
    graph = turn("rope_frequencies_longrope", np.array([9]), short_factor=divisors,
                 long_factor=divisors, original_max_position_embeddings=64)  # fmt: skip
    longer = variant("rope-llama3-scaling-missing", "by the longer length")
    np.testing.assert_allclose(wrong(graph, longer), halves(llama3(64)), atol=1e-12)
    every = variant("rope-llama3-scaling-missing", "every pair divided")
    np.testing.assert_allclose(wrong(graph, every), halves(base() / 8), atol=1e-12)


@pytest.mark.parametrize("listed", [False, True])
def test_where_no_length_is_longer_nothing_is_changed(listed):
    """By hand: the first texts were as long as the longest may be, 64 tokens."""
    divisors = tuple((base() / llama3(64)).tolist())
    tables = {"short_factor": divisors, "long_factor": divisors}
    graph = turn("rope_frequencies_longrope", np.array([9]), **tables,
                 original_max_position_embeddings=64)  # fmt: skip
    if not listed:
        graph = turn(**LLAMA3 | {"original_max_position_embeddings": 64})
    longer = variant("rope-llama3-scaling-missing", "by the longer length")
    assert longer(graph.calls[2], graph) is None


def llama3(length: int) -> np.ndarray:
    kept = np.clip((length * base() / (2 * np.pi) - 1) / 3, 0, 1)
    return kept * base() + (1 - kept) * base() / 8


@pytest.mark.parametrize(("name", "factor"), [("never", 1.0), ("twice", 2.25)])
def test_the_factor_of_yarn(name, factor):
    options = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "factor": 4.0,
               "original_max_position_embeddings": 16}  # fmt: skip
    graph = graph_of(
        call(0, "rope_frequencies_yarn", theta=THETA, dims=DIMS, **options),
        call(1, "scale", X, by=1.0),
        call(2, "rope", Value(1), np.arange(LENGTH)[None], Value(0), factor=1.5, layer=0),
    )
    np.testing.assert_allclose(
        np.linalg.norm(wrong(graph, variant("rope-yarn-attn-factor", name))),
        np.linalg.norm(X) * factor,
    )
    usual = variant("rope-yarn-attn-factor", "always 0.1 ln(s) + 1")(graph.calls[2], graph)
    assert usual is not None and usual.options["factor"] == pytest.approx(1.1386, abs=1e-4)


def test_the_factors_that_mlx_lm_takes():
    """mscale 2 and s = 4: 0.2 ln 4 + 1. Lengths 64 and 16: sqrt(1 + ln 4 / ln 16), the root of 1.5.

    The second is right where the config names no factor: then nothing is changed.
    """
    graph = graph_of(
        call(0, "rope_frequencies_yarn", theta=THETA, dims=DIMS, factor=4.0, beta_fast=32.0,
             beta_slow=1.0, truncate=True, original_max_position_embeddings=16),
        call(1, "scale", X, by=1.0),
        call(2, "rope", Value(1), np.arange(LENGTH)[None], Value(0), factor=1.5, layer=0),
        rope_scaling=SimpleNamespace(factor=4.0, lone_mscale=2.0),
    )  # fmt: skip
    alone = variant("rope-yarn-attn-factor", "mscale counts alone")(graph.calls[2], graph)
    assert alone is not None and alone.options["factor"] == pytest.approx(1.2772589)
    tables = {"short_factor": (1.0, 2.0, 3.0, 4.0), "long_factor": (5.0, 6.0, 7.0, 8.0)}
    graph = turn("rope_frequencies_longrope", np.array([9]), **tables,
                 original_max_position_embeddings=16)  # fmt: skip
    by_lengths = variant("rope-longrope-mscale", "by both lengths")
    changed = by_lengths(graph.calls[2], graph)
    assert changed is not None and changed.options["factor"] == pytest.approx(1.5**0.5)
    assert by_lengths(changed, graph) is None


def test_a_base_and_a_missing_stretch_compose():
    graph = turn(**LLAMA3)
    both = variant("rope-theta-default", "base 10000"), variant("rope-llama3-scaling-missing",
                                                               "not at all")  # fmt: skip
    for one, two in (both, both[::-1]):
        found = wrong(graph, lambda call, graph, one=one, two=two:
                      one(call, graph) and two(one(call, graph), graph))  # fmt: skip
        np.testing.assert_allclose(found, halves(base(theta=1e4)), atol=1e-13)


ORIGINAL, STEPS = 4, (5, 7)  # five tokens of a prompt, steps of two and of one
ENDS = [5, 5, 5, 5, 5, 7, 7, 8]  # how long the text is when each token is read


def attending():
    """Keys that stretch, and queries that do not; positions are of a text of eight tokens."""
    at, drawn = np.arange(8)[None], np.random.default_rng(8).standard_normal((2, 1, 2, 8, DIMS))
    options = {"factor": 3.0, "original_max_position_embeddings": ORIGINAL}
    graph = graph_of(
        call(0, "rope_frequencies_dynamic", np.array([8]), theta=THETA, dims=DIMS, **options),
        call(1, "scale", drawn[0], by=1.0), call(2, "scale", drawn[1], by=1.0),
        call(3, "rope", Value(2), at, Value(0), factor=1.0, layer=0),
        call(4, "attention_scores", Value(1), Value(3), scale=0.5, layer=0),
        steps=STEPS,
    )  # fmt: skip
    return stretched(graph, at), *drawn


def scores_of(queries, keys, length_of):
    """Score in loops: `length_of(query, key)` is the length that the key's turn goes by."""
    out = np.zeros((1, 2, 8, 8))
    for head in range(2):
        for query in range(8):
            for key in range(8):
                growth = 3.0 * max(length_of(query, key), ORIGINAL) / ORIGINAL - 2.0
                turns = base(theta=THETA * growth ** (DIMS / (DIMS - 2))) * key
                a, b = keys[0, head, key, :4], keys[0, head, key, 4:]
                c, s = np.cos(turns), np.sin(turns)
                turned = np.concatenate([a * c - b * s, b * c + a * s])
                out[0, head, query, key] = 0.5 * queries[0, head, query] @ turned
    return out


@pytest.mark.parametrize(
    ("name", "length_of"),
    [
        (None, lambda query, key: ENDS[key]),
        ("by the prompt's length, in steps too", lambda query, key: 5),
        ("by the length before the step", lambda query, key: [5, 5, 5, 5, 5, 5, 5, 7][key]),
        ("by what a step is fed alone", lambda query, key: [5, 5, 5, 5, 5, 2, 2, 1][key]),
        ("cached keys are turned anew in every step",
         lambda query, key: ENDS[query] if query >= STEPS[0] else ENDS[key]),
    ],
)  # fmt: skip
def test_keys_of_a_growing_text_in_loops(name, length_of):
    graph, queries, keys = attending()
    right = lambda call, graph: call  # noqa: E731
    found = wrong(graph, variant("rope-dynamic-ntk", name) if name else right)
    expected = scores_of(queries, keys, length_of)
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_rows_of_a_batch_stretch_alone():
    """By hand: rows of 3 and 5 tokens, a step of one; keys of the first go by 3, then 4."""
    at = np.array([[0, 1, 2, 2, 2, 3], [0, 1, 2, 3, 4, 5]])
    assert lengths_of((5,), at).tolist() == [[3] * 5 + [4], [5] * 5 + [6]]


def test_plain_models_have_none_of_it():
    graph = world("models/tied_bfloat16").graph
    for fault in FAULTS:
        for rewrite in fault.variants.values():
            assert not world("models/tied_bfloat16").calls(rewrite), (fault.id, graph.config)


@pytest.mark.parametrize(
    ("name", "length"),
    [("by a length of 8192, whatever the config says", 8192), ("wavelengths without 2 pi", None)],
)
def test_llama3_by_another_length_by_loop(name, length):
    """A wavelength without 2 pi is compared with the original length as it is."""
    blend = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 4.0}
    graph = turn("rope_frequencies_llama3", **blend, original_max_position_embeddings=16)
    frequencies = []
    for plain in base():
        turns = 16 * plain if length is None else length * plain / (2 * np.pi)
        kept = min(max((turns - 1) / 3, 0), 1)
        frequencies.append(kept * plain + (1 - kept) * plain / 4)
    found = wrong(graph, variant("rope-llama3-scaling-missing", name))
    np.testing.assert_allclose(found, halves(frequencies), atol=1e-13)
