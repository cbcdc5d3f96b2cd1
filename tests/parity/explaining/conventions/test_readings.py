"""Values dumped at another point of the same computation are a convention. By law."""

import numpy as np
import pytest

from lockstep.parity.explaining.conventions.rounding import convention_of
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.reference import ops
from lockstep.reference.precision import dtype_named
from tests.parity.explaining.ports import explained, graph_of, ids, model_of, port
from tests.sampled import sampled

NAME, PLAIN = "gemma4/sparse", "models/untied_float32"
SCALE = model_of(NAME).config.hidden_size ** 0.5


@sampled(1, "modules-float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_an_embedding_dumped_before_its_scale_is_a_convention(level, dtype):
    taps = port(NAME, level=level, dtype=dtype)
    kind = taps["model.embed_tokens"].dtype
    taps["model.embed_tokens"] = (taps["model.embed_tokens"].astype(float) / SCALE).astype(kind)
    found = explained(NAME, taps, dtype=dtype)
    assert found.verdict == "clean"
    assert found.conventions[0] == (
        f"model.embed_tokens is dumped before it is scaled by {SCALE:.6g}; "
        "what follows takes it scaled"
    )


@sampled(0)
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_scale_that_is_missing_is_a_bug(level):
    found = explained(NAME, port(NAME, ["embed-scale-missing"], level=level))
    assert ids(found) == {"embed-scale-missing"} and found.conventions == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", [PLAIN, "gpt2/original"])
def test_scores_dumped_before_their_scale_are_a_convention(name, dtype):
    taps = port(name, level="taps", dtype=dtype)
    by = next(call.options["scale"] for call in graph_of(name).calls if "scale" in call.options)
    for tap in [tap for tap in taps if tap.endswith(".scores")]:
        taps[tap] = (taps[tap].astype(float) / by).astype(taps[tap].dtype)
    found = explained(name, taps, dtype=dtype)
    assert found.verdict == "clean"
    assert any(f"before it is scaled by {by:.6g}" in line for line in found.conventions)


def test_scores_whose_scale_is_missing_have_a_bug():
    found = explained(PLAIN, port(PLAIN, ["attn-scale-missing"], level="taps"))
    assert ids(found) == {"attn-scale-missing"} and found.conventions == []


def test_one_that_is_alone_may_be_either_and_is_called_a_bug():
    """With nothing that follows, nobody can say that it is scaled later."""
    taps = {"model.embed_tokens": port(NAME)["model.embed_tokens"] / np.float32(SCALE)}
    assert ids(explained(NAME, taps)) == {"embed-scale-missing"}


def test_another_factor_is_no_convention():
    taps = port(NAME)
    taps["model.embed_tokens"] = taps["model.embed_tokens"] / np.float32(SCALE / 2)
    found = explained(NAME, taps, ())
    assert found.verdict == "unknown" and found.conventions == []


def test_the_convention_of_rounding_is_found_by_its_bits():
    """The port rounds norms and attention as transformers does; its bits come out of that alone."""
    name, half = "models/sliding_bfloat16", dtype_named("bfloat16")
    model, graph = model_of(name), graph_of(name)
    taps = port(name, dtype="bfloat16")
    values = {graph.taps[tap]: value for tap, value in taps.items()}
    trial = Trial(graph, ops, half, values, Tensors(model.checkpoint))
    pieces = [(piece, {}) for piece in graph.pieces(values)]
    for piece, calls in pieces:
        _, share = convention_of(trial, [(piece, calls)])
        assert share > 0.98, graph.calls[piece.target].taps
