"""A dump of another checkpoint is doubted before it is searched for bugs. By hand, and by law."""

from itertools import pairwise

import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.other_model import other_model
from lockstep.parity.explaining.steps.steps import read_passes
from lockstep.parity.naming.llama_cpp import LAYER, PARTS, WHOLE
from lockstep.parity.naming.plan import known_taps
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.explaining.ports import dumped, model_of, port
from tests.parity.explaining.test_own_ways import in_nano_names
from tests.sampled import sampled

MODELS = ("gemma4/sparse", "models/untied_float32", "gpt2/original", "qwen3_moe/fused")
LLAMA, GPT2 = "models/untied_float32", "gpt2/original"


def taps_of(name, length=20):
    """Return taps of a model: their shapes are what is asked for, so they hold random numbers."""
    draw = np.random.default_rng(0).standard_normal
    shapes = known_taps(model_of(name).checkpoint, length=length)
    return {tap: draw(shape, np.float32) for tap, shape in shapes.items()}


def doubted(name, taps):
    """Return the doubts of a dump, aligned with a model as `explain` does it."""
    graph, sides = read_passes(model_of(name), dumped(taps, name), None, None)
    wanted = graph.tap_shapes
    return other_model(sides, wanted, name)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_s_own_taps_are_not_doubted(name):
    assert doubted(name, taps_of(name)) == []


def test_a_right_port_under_the_names_of_llama_cpp_is_not_doubted():
    """What `wqkv` and `inpL` mean, GPT-2's own table says; Llama's has other taps for some."""
    taps, parts = taps_of(GPT2), {part: name for name, part in PARTS["gpt2"].items()}
    named = {tap: taps[tap] for tap in WHOLE["gpt2"].values()}
    theirs = {name: named[tap] for name, tap in WHOLE["gpt2"].items()}
    for layer in range(model_of(GPT2).config.num_hidden_layers):
        stem = f"{LAYER['gpt2']}.{layer}"
        for part, name in parts.items():
            theirs[f"{name}-{layer}"] = taps[f"{stem}.{part}".rstrip(".")]
    assert doubted(GPT2, theirs) == []


def test_a_fork_of_nanogpt_is_not_doubted():
    assert doubted(LLAMA, in_nano_names(taps_of(LLAMA))) == []


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 2, 1, 3)], ids=["B L H D", "B H L D"])
def test_heads_that_were_split_are_not_doubted(layout):
    """By hand: heads of 20, none of which is as wide as what they make up."""
    taps = taps_of(LLAMA)
    split = {
        tap: value.reshape(*value.shape[:2], -1, 20).transpose(layout)
        for tap, value in taps.items() if tap.endswith(("q_proj", "k_proj", "v_proj"))
    }  # fmt: skip
    assert doubted(LLAMA, split | {"logits": taps["logits"]}) == []


@pytest.mark.parametrize("pair", [*pairwise(MODELS[:3])])
def test_those_of_another_are(pair):
    dumped, ported = pair
    assert doubted(ported, taps_of(dumped))
    assert doubted(dumped, taps_of(ported))


def test_a_bug_that_spoils_shapes_is_no_other_model():
    """Half of the heads, everywhere: all that is made of them is too narrow, the rest fits."""
    narrow = {tap: value[..., : value.shape[-1] // 2 + 1] if "self_attn" in tap else value
              for tap, value in taps_of(LLAMA).items()}  # fmt: skip
    assert doubted(LLAMA, narrow) == []


def narrow_ones(count, of):
    """Return taps as wide as the stream, a few of them too narrow by one."""
    wide = {tap: value for tap, value in taps_of(LLAMA).items() if value.shape[-1] == 48}
    return {tap: value[..., :-1] if number < count else value
            for number, (tap, value) in enumerate([*wide.items()][:of])}  # fmt: skip


@pytest.mark.parametrize(
    ("count", "of", "wrong"),
    [(2, 4, False), (2, 5, False), (3, 5, True), (3, 6, False), (4, 6, True), (3, 3, False)],
)
def test_more_than_half_but_not_all_are_doubted(count, of, wrong):
    assert bool(doubted(LLAMA, narrow_ones(count, of))) == wrong


def test_the_doubt_says_how_many_and_which_first():
    """By hand: of three taps two have no multiple of the width that they should have."""
    taps = taps_of(LLAMA)
    wrong = {tap: taps[tap][..., :-1] for tap in ("logits", "model.norm")}
    (line,) = doubted(LLAMA, wrong | {"model.layers.0": taps["model.layers.0"]})
    assert line.startswith(f"2 of 3 taps of the dump are none of {LLAMA}, or of another width, ")
    assert f"the first is logits {[*wrong['logits'].shape]}: is it" in line


def doubts_of_values(taps, **options):
    """Return what is asked before the search, and the diagnosis."""
    asked = []
    found = explain(model_of(LLAMA), dumped(taps, LLAMA), doubt=asked.append, **options)
    return asked, found


def test_embeddings_that_are_no_rows_of_the_table_are_doubted():
    """By hand: a port of the same shapes, whose table was drawn from elsewhere."""
    taps = port(LLAMA)
    rows = taps["model.embed_tokens"]
    drawn = np.random.default_rng(6).standard_normal(rows.shape).astype(np.float32)
    asked, found = doubts_of_values({"model.embed_tokens": drawn}, faults=())
    assert asked == [
        "the embeddings of the dump are no rows of untied_float32's: is it the checkpoint that was "
        "ported?"
    ]
    assert found.verdict == "unknown"
    assert doubts_of_values({"model.embed_tokens": rows[:, ::-1].copy()}, faults=())[0] == []
    assert doubts_of_values(taps)[0] == []


def spoilt(bug):
    return lambda rows: port(LLAMA, [bug])["model.embed_tokens"]


SPOILT = {
    "offset: the same vector is added to every token": lambda rows: rows + np.cos(np.arange(48)),
    "permutation: the right values of each token, in another order": lambda rows: rows[..., ::-1],
    "gain: each feature by a factor of its own, the same for all tokens":
        lambda rows: rows * np.linspace(-2, 2, 48),
    "gain: -1 times the right value": lambda rows: -rows,
    "nought everywhere": lambda rows: 0 * rows,
    "no number anywhere: NaN in every place": lambda rows: np.nan * rows,
    "like no row of its table: is it of this checkpoint?": spoilt("embed-table-transposed"),
}  # fmt: skip


@pytest.mark.parametrize("shape", SPOILT)
def test_rows_of_the_table_that_are_spoilt_are_not_doubted(shape):
    """By hand: what bugs make of right rows. One of the catalogue leaves no row as it was."""
    tap = "model.embed_tokens"
    rows = SPOILT[shape](port(LLAMA)[tap]).astype(np.float32)
    asked, found = doubts_of_values({tap: rows})
    assert asked == []
    if not found.faults:
        assert [one.shape for one in found.unexplained] == [shape]


@pytest.mark.parametrize("size", [1e-3, 0.1, 1, 10])
def test_rows_of_another_table_are_doubted_at_any_scale(size):
    tap = "model.embed_tokens"
    right = port(LLAMA)[tap]
    drawn = np.random.default_rng(6).standard_normal(right.shape) * right.std() * size
    assert len(doubts_of_values({tap: drawn.astype(np.float32)})[0]) == 1


def test_another_width_is_doubted_before_it_is_refused():
    """By hand: no tensor can be compared, but one has an axis as wide as the stream."""
    sizes = {"logits": 20, "model.norm": 20, "model.layers.0": 48}
    taps = {tap: np.zeros((size, 7), np.float32) for tap, size in sizes.items()}
    asked = []
    with pytest.raises(InputError, match="nothing was compared"):
        explain(model_of(LLAMA), dumped(taps, LLAMA), doubt=asked.append)
    assert len(asked) == 1 and asked[0].startswith("2 of 3 taps of the dump are none of")


def test_tensors_of_two_dtypes_are_doubted():
    """By hand: every second tensor is stored in half precision, of a port in float32."""
    taps = port(LLAMA)
    half = {tap: value.astype(np.float16) if number % 2 else value
            for number, (tap, value) in enumerate(taps.items())}  # fmt: skip
    asked, found = doubts_of_values(half, faults=())
    assert len(asked) == 1 and asked[0] in found.conventions
    assert "stored as float16" in asked[0] and "judged as float32" in asked[0]
    assert "pass --dtype float16" in asked[0]
    asked, found = doubts_of_values(half, dtype="float16")
    assert (asked, found.verdict) == ([], "clean")
    asked, found = doubts_of_values(half, dtype="float32", faults=())  # said, so not asked again
    lines = [line for line in found.conventions if "stored as float16" in line]
    assert not asked and len(lines) == 1 and "--dtype" not in lines[0]


@sampled(0)
def test_a_cache_in_half_precision_is_not_doubted():
    """By hand: of a port in float32 the caches alone are float16: heads of 20 numbers."""
    taps = port(LLAMA)
    head = {tap: taps[tap] for tap in ("model.embed_tokens", "logits")}
    layers = [tap.removesuffix("k_proj") for tap in taps if tap.endswith("self_attn.k_proj")]
    heads = {
        f"{layer}cached_{part}": taps[f"{layer}{part[0]}_proj"].reshape(1, 20, -1, 20)
        for layer in layers for part in ("keys", "values")
    }  # fmt: skip
    half = {tap: value.transpose(0, 2, 1, 3).astype(np.float16) for tap, value in heads.items()}
    asked, found = doubts_of_values(head | half, faults=())
    assert asked == [] and not any("float16" in line for line in found.conventions)


def test_a_copy_in_half_precision_is_not_doubted():
    """By hand: the embedding alone, as a checkpoint in bfloat16 has it."""
    taps = port(LLAMA)
    rows = taps["model.embed_tokens"].astype(np.float16)
    asked, _ = doubts_of_values(taps | {"model.embed_tokens": rows}, faults=())
    assert asked == []
