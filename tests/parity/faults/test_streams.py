"""Embeddings, the stream between layers, logits and precisions with a bug in them. By hand."""

import math

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.graph import Constant, Evaluator, Value
from lockstep.reference import ops
from tests.parity.faults.hand_made import FLOAT64, call, graph_of, one_call, variant, wrong

TABLE = np.arange(6.0).reshape(3, 2)  # three tokens, width 2
IDS = np.array([[0, 2, 1]])
EMBEDDED = {
    ("embedding-id-shifted", "row t +1", "model.embed_tokens"): [[2, 3], [0, 1], [4, 5]],
    ("embedding-id-shifted", "row t -1", "transformer.wte"): [[4, 5], [2, 3], [0, 1]],
    # the numbers 0 to 5 taken for two rows of three: column t is (t, t + 3)
    ("embed-table-transposed", "", "model.embed_tokens"): [[0, 3], [2, 5], [1, 4]],
    ("learned-pos-offset", "1 rows too far", "transformer.wpe"): [[2, 3], [4, 5], [4, 5]],
    ("learned-pos-offset", "2 rows too far", "transformer.wpe"): [[4, 5], [4, 5], [4, 5]],
}


@pytest.mark.parametrize("case", EMBEDDED, ids=" ".join)
def test_another_row_of_the_table(case):
    id, name, place = case
    found = one_call(id, name, "embedding", IDS, TABLE, place=place, dtype=FLOAT64)
    np.testing.assert_array_equal(found, [EMBEDDED[case]])


SCALES = {
    ("embed-scale-missing", ""): 1.0,
    ("embed-scale-twice", ""): 53.0659966,
    ("embed-scale-not-rounded", "not rounded"): 7.28464115,
    ("embed-scale-not-rounded", "rounded to bfloat16"): 7.28125,
    ("embed-scale-not-rounded", "rounded to float16"): 7.28515625,
}


@pytest.mark.parametrize("case", SCALES, ids=" ".join)
def test_another_scale_of_the_embedding(case):
    """The root of 53.066 is 7.2846; bfloat16 has steps of 1/32 there, float16 of 1/256."""
    found = one_call(*case, "scale", np.ones((1, 1, 1)), place="model.embed_tokens",
                     by=math.sqrt(53.0659966))  # fmt: skip
    np.testing.assert_allclose(found, SCALES[case], rtol=1e-8)


@pytest.mark.parametrize(("kind", "expected"), [("bfloat16", 9.4375), ("float16", 9.46875)])
def test_the_embedding_may_be_scaled_in_half_precision(kind, expected):
    """1.3 is 1.296875 in bfloat16, 1.2998047 in float16; times 7.28125 or 7.28515625; rounded."""
    found = one_call("embed-scale-not-rounded", f"all of it in {kind}", "scale",
                     np.full((1, 1, 1), 1.3), place="model.embed_tokens",
                     by=math.sqrt(53.0659966))  # fmt: skip
    assert found.dtype == FLOAT64
    np.testing.assert_array_equal(found, expected)


def test_a_tied_head_may_inherit_the_scale():
    from lockstep.parity.graph import Call, Evaluator, Tensor

    head = Call(1, "linear", (Value(0), Tensor("model.embed_tokens.weight"), Constant(None)), {},
                ("lm_head", "logits"), "lm_head", None)  # fmt: skip
    scale = call(0, "scale", np.array([[[1.0, 2.0]]]), place="model.embed_tokens", by=4.0)
    from lockstep.parity.graph import Graph

    graph = Graph((scale, head), ((1, 1, 2), (1, 1, 3)), ((1,), (1,)), None)
    changed = variant("tied-head-inherits-embed-scale")(head, graph)
    run = Evaluator(graph, ops, FLOAT64, {}, lambda tensor: TABLE)
    np.testing.assert_array_equal(run.target(1), [[[8, 32, 56]]])
    np.testing.assert_array_equal(run.target(1, {1: changed}), [[[32, 128, 224]]])


INPUTS = np.arange(8.0).reshape(1, 2, 4)  # two tokens, two layers, width 2
BLOCKS = {
    "of the layer after": [[2, 3], [6, 7]],
    "of the layer before": [[2, 3], [6, 7]],  # of two, the one before the first is the last
    "layers take turns": [[0, 2], [4, 6]],
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_layer_may_read_what_is_not_its_own(name):
    found = one_call("per-layer-input-misaligned", name, "column_block", INPUTS,
                     place="per_layer_projection", block=0, blocks=2)  # fmt: skip
    np.testing.assert_array_equal(found, [BLOCKS[name]])


SAID, LOOKED_UP = np.arange(1.0, 13.0).reshape(1, 2, 6), np.arange(12.0).reshape(1, 2, 6)
NORM = r"model.per_layer_projection_norm"


@pytest.mark.parametrize(
    ("name", "said", "table"),
    [
        ("layers take turns, in the norm too", True, True),
        ("layers take turns in the projection, in the norm too", True, False),
        ("layers take turns in the table", False, True),
    ],
)
def test_layers_may_take_turns_before_the_norm(name, said, table):
    """By loop: of two layers of width 3, number j of layer l is number 2 j + l for 3 l + j."""
    graph = graph_of(
        call(0, "scale", SAID, by=1.0, place=NORM),
        call(1, "split_heads", Value(0), place=NORM, heads=2),
        call(2, "unit_norm", Value(1), place=NORM, eps=0.0),
        call(3, "heads_first", Value(2), place="model.per_layer_inputs"),
        call(4, "merge_heads", Value(3), place="model.per_layer_inputs"),
        call(5, "add", Value(4), LOOKED_UP, place="model.per_layer_inputs"),
        num_hidden_layers=2,
    )
    expected = np.zeros((1, 2, 6))
    for token in range(2):
        for layer in range(2):
            places = [2 * j + layer if said else 3 * layer + j for j in range(3)]
            own = SAID[0, token, places]
            own = own / math.sqrt((own * own).mean())
            for j in range(3):
                other = LOOKED_UP[0, token, 2 * j + layer if table else 3 * layer + j]
                expected[0, token, 3 * layer + j] = own[j] + other
    found = wrong(graph, variant("per-layer-input-misaligned", name))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_rows_that_are_not_scaled_may_be_projected_for_the_layers():
    matrix = np.array([[1.0, 2.0], [3.0, 4.0]])
    graph = graph_of(
        call(0, "embedding", IDS, TABLE, place="model.embed_tokens", dtype=FLOAT64),
        call(1, "scale", Value(0), place="model.embed_tokens", by=8.0),
        call(2, "linear", Value(1), matrix, None, place="model.per_layer_model_projection"),
    )
    found = wrong(graph, variant("ple-combine-scale-missing", "of the embedding that is projected"))
    np.testing.assert_array_equal(found, [[[2, 4], [14, 32], [8, 18]]])


def test_every_chunk_may_read_what_the_first_should():
    """Token 17 of chunks of 16 reads what token 1 should."""
    inputs = np.arange(18.0).reshape(1, 18, 1)
    graph = graph_of(
        call(0, "multiply", inputs, np.ones_like(inputs)),
        call(1, "column_block", Value(0), place="per_layer_projection", block=0, blocks=1),
    )
    found = wrong(graph, variant("per-layer-input-misaligned", "of the first 16 tokens"))
    np.testing.assert_array_equal(found[0, :, 0], [*range(16), 0, 1])
    longer = variant("per-layer-input-misaligned", "of the first 32 tokens")
    assert longer(graph.calls[1], graph) is None


STREAM, ATTENDED = np.array([[[3.0, 4.0]]]), np.array([[[1.0, -1.0]]])


def test_a_parallel_mlp_reads_the_stream_before_attention():
    graph = graph_of(
        call(0, "scale", STREAM, by=1.0),
        call(1, "add", Value(0), ATTENDED, place="residual"),
        call(2, "unit_norm", Value(1), place="post_attention_layernorm", eps=0.0),
    )
    found = wrong(graph, variant("parallel-residual-as-sequential", "parallel for sequential"))
    np.testing.assert_allclose(found, STREAM / math.sqrt(12.5), rtol=1e-12)


def test_the_stream_may_be_forgotten():
    graph = graph_of(
        call(0, "scale", STREAM, by=1.0),
        call(1, "add", Value(0), ATTENDED, place="residual"),
    )
    np.testing.assert_array_equal(wrong(graph, variant("residual-missing")), ATTENDED)


@pytest.mark.parametrize(
    ("id", "expected"),
    [("residual-counted-twice", 2 * STREAM + ATTENDED), ("branch-not-added", STREAM)],
)
def test_a_sum_may_have_another_share_of_its_sides(id, expected):
    graph = graph_of(
        call(0, "scale", STREAM, by=1.0),
        call(1, "add", Value(0), ATTENDED, place="residual"),
    )
    np.testing.assert_array_equal(wrong(graph, variant(id)), expected)


def test_a_branch_may_be_added_to_what_went_into_the_layer():
    graph = graph_of(
        call(0, "scale", STREAM, by=1.0),
        call(1, "add", Value(0), ATTENDED, place="residual", layer=0),
        call(2, "add", Value(1), 3 * ATTENDED, layer=0),
    )
    found = wrong(graph, variant("residual-from-before-attention"))
    np.testing.assert_array_equal(found, STREAM + 3 * ATTENDED)


def test_positions_may_not_be_added():
    graph = graph_of(
        call(0, "scale", STREAM, by=1.0),
        call(1, "add", Value(0), ATTENDED, place="transformer.drop"),
    )
    np.testing.assert_array_equal(wrong(graph, variant("learned-pos-missing")), STREAM)


def test_the_stream_may_go_past_a_layer():
    """Of two layers that add 1 and -1, and then twice as much, the last is left out, or none."""
    graph = graph_of(
        call(0, "scale", STREAM, by=1.0),
        call(1, "add", Value(0), ATTENDED, place="residual", layer=0),
        call(2, "add", Value(1), ATTENDED, layer=0),
        call(3, "add", Value(2), 2 * ATTENDED, place="residual", layer=1),
        call(4, "add", Value(3), 2 * ATTENDED, layer=1),
        call(5, "unit_norm", Value(4), place="model.norm", eps=0.0),
    )
    left_out = variant("layer-left-out")
    changed = {number: left_out(graph.calls[number], graph) for number in range(6)}
    assert [number for number, one in changed.items() if one is not None] == [3, 5]
    run = Evaluator(graph, ops, FLOAT64, {}, None)  # pyright: ignore[reportArgumentType]
    last = run.target(5, {5: changed[5]})
    expected = STREAM + 2 * ATTENDED
    np.testing.assert_allclose(last, expected / np.sqrt(np.mean(expected**2)), rtol=1e-12)
    first = run.target(4, {3: changed[3]})
    np.testing.assert_array_equal(first, STREAM + 4 * ATTENDED)


def test_the_stream_may_be_forgotten_on_the_way_to_a_norm():
    graph = graph_of(
        call(0, "scale", STREAM, by=1.0),
        call(1, "add", Value(0), 2 * ATTENDED, place="residual"),
        call(2, "unit_norm", Value(1), place="post_attention_layernorm", eps=0.0),
    )
    found = wrong(graph, variant("residual-missing", "into the next norm alone"))
    np.testing.assert_allclose(found, ATTENDED, rtol=1e-12)


def test_a_branch_may_be_added_to_the_stream_over_its_root():
    graph = graph_of(
        call(0, "scale", STREAM, by=1.0),
        call(1, "rms_norm", Value(0), np.array([1.0, 2.0]), eps=0.0, layer=0),
        call(2, "add", Value(0), ATTENDED, place="residual", layer=0),
    )
    found = wrong(graph, variant("residual-from-normed-stream", "without its gain"))
    np.testing.assert_allclose(found, STREAM / math.sqrt(12.5) + ATTENDED, rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "rows"),  # of ids 5, 130, 260, 299, in a table of 300 rows
    [("uint8", [5, 130, 4, 43]), ("int8", [5, 174, 4, 43])],
)
def test_ids_may_be_counted_in_fewer_bits(kind, rows):
    """By hand: 130 is -126 in int8, the row 300 - 126; 260 is 4, and 299 is 43."""
    table = np.arange(600.0).reshape(300, 2)
    found = one_call(
        "embedding-ids-narrowed", kind, "embedding", np.array([[5, 130, 260, 299]]), table,
        place="model.embed_tokens", dtype=FLOAT64,
    )  # fmt: skip
    np.testing.assert_array_equal(found[0], table[rows])


def test_a_branch_may_be_added_to_what_its_norm_gives():
    gain = np.array([1.0, 2.0])
    graph = graph_of(
        call(0, "scale", STREAM, by=1.0),
        call(1, "rms_norm", Value(0), gain, place="input_layernorm", eps=0.0, layer=0),
        call(2, "add", Value(0), ATTENDED, place="residual", layer=0),
    )
    found = wrong(graph, variant("residual-from-normed-stream"))
    expected = STREAM / math.sqrt(12.5) * gain + ATTENDED
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_an_embedding_is_scaled_that_should_not_be():
    """By hand: a table of one row; its numbers are two. One that is scaled already is left."""
    lookup = call(0, "embedding", np.array([[0]]), STREAM[0], place="model.embed_tokens",
                  dtype=np.dtype(np.float64))  # fmt: skip
    rewrite = variant("embed-scale-twice", "once, where there is none")
    found = wrong(graph_of(lookup), rewrite)
    np.testing.assert_allclose(found, STREAM * math.sqrt(2), rtol=1e-12)
    scaled = call(1, "scale", Value(0), place="model.embed_tokens", by=2.0)
    assert rewrite(lookup, graph_of(lookup, scaled)) is None


CAPS = {
    "": lambda x: x,
    "twice": lambda x: 2 * math.tanh(math.tanh(x / 2)),
    "not divided": lambda x: 2 * math.tanh(x),
    "not multiplied": lambda x: math.tanh(x / 2),
}


@pytest.mark.parametrize("name", CAPS)
def test_a_wrong_softcap(name):
    points = [-3.0, -0.5, 0.0, 1.0, 4.0]
    found = one_call("final-softcap-missing", name, "softcap", np.array([[points]]),
                     place="logits", cap=2.0)  # fmt: skip
    np.testing.assert_allclose(found[0, 0], [CAPS[name](x) for x in points], rtol=1e-12)


def test_shifted_logits_keep_the_first_row():
    graph = graph_of(call(0, "scale", np.array([[[1.0], [2.0], [3.0]]]), taps=("logits",), by=1.0))
    found = wrong(graph, variant("diffusion-logit-shift"))
    np.testing.assert_array_equal(found, [[[1], [1], [2]]])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("probabilities", [0.25, 0.75]), ("log-probabilities", np.log([0.25, 0.75]))],
)
def test_probabilities_under_the_name_of_logits(name, expected):
    """By hand: ln 3 more is three times as likely."""
    given = np.array([[[5.0, 5.0 + math.log(3.0)]]])
    graph = graph_of(call(0, "scale", given, taps=("logits",), by=1.0))
    found = wrong(graph, variant("logits-as-probabilities", name))
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "expected"), [("in bfloat16", [1.0, 2.0]), ("in float16", [1.0009765625, 2.0])]
)
def test_rounded_logits(name, expected):
    """1.001 is 1 in bfloat16, and 1 + 2^-10 in float16."""
    graph = graph_of(call(0, "scale", np.array([[[1.001, 2.0]]]), taps=("logits",), by=1.0))
    np.testing.assert_array_equal(
        wrong(graph, variant("logits-half-precision", name)), [[expected]]
    )


@pytest.mark.parametrize(
    ("id", "op"), [("fp16-residual-overflow", "add"), ("fp16-mlp-product-overflow", "multiply")]
)
def test_float16_ends_at_65504(id, op):
    """By hand: 300 * 300 is too much, and so is 65504 + 300."""
    right = np.array([[[300.0, 2.0]]])
    left = np.array([[[65504.0 if op == "add" else 300.0, 3.0]]])
    found = one_call(id, "", op, left, right)
    np.testing.assert_array_equal(found, [[[np.inf, 5.0 if op == "add" else 6.0]]])


def test_a_scale_folded_with_log2_e_and_rounded():
    """0.25 log2(e) is 0.36067; the nearest of bfloat16 is 0.361328125."""
    queries = keys = np.ones((1, 1, 1, 1))
    found = one_call("sdpa-scale-folded-half", "in bfloat16", "attention_scores", queries, keys,
                     scale=0.25)  # fmt: skip
    np.testing.assert_allclose(found, 0.361328125 / math.log2(math.e), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "given", "held"),
    [
        ("TF32", 1 + 2.0**-10, 1 + 2.0**-10),
        ("TF32", 1 + 2.0**-11, 1.0),  # half way: to the even one
        ("TF32", 1 + 3 * 2.0**-11, 1 + 2.0**-9),
        ("TF32", 1 + 2.0**-11 + 2.0**-20, 1 + 2.0**-10),
        ("TF32, ties away from nought", 1 + 2.0**-11, 1 + 2.0**-10),
        ("TF32, cut off", 1 + 2.0**-10 + 2.0**-11 + 2.0**-20, 1 + 2.0**-10),
        ("bfloat16, attention not", 1 + 3 * 2.0**-8, 1 + 2.0**-6),
        ("bfloat16", 1 + 2.0**-8, 1.0),
        ("bfloat16", 1 + 3 * 2.0**-8, 1 + 2.0**-6),
        ("float16", 1 + 3 * 2.0**-11, 1 + 2.0**-9),
    ],
)
def test_fast_products_round_what_goes_in(name, given, held):
    x, weight = np.array([[[given]]]), np.array([[given]])
    found = one_call("tf32-or-fast-matmul", name, "linear", x, weight, None)
    np.testing.assert_array_equal(found, [[[held**2]]])


def test_the_bits_of_one_half_precision_are_other_numbers_in_the_other():
    """1.0 is 0x3F80 in bfloat16, which is 1.875 in float16; 1.0 of float16, 0x3C00, is 2^-7."""
    from lockstep.parity.faults.dtype import reread

    one = np.ones(1)
    assert reread(ops, one.astype(ml_dtypes.bfloat16)) == 1.875
    assert reread(ops, one.astype(np.float16)).astype(float) == 2.0**-7
    assert reread(ops, one) is one
