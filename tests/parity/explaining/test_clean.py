"""A right port is clean, whatever it dumps, in every dtype. By law."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep import reference
from lockstep.parity.explaining.routing.flips import near_choice
from tests.parity.explaining import ports
from tests.parity.explaining.ports import WITNESSES, explained, ids, is_of, model_of, port, prompt
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

MODELS = (
    "models/untied_float32", "gpt2/variant", "llama/mistral_window", "qwen3_moe/separate",
)  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16")


def check_clean(found, dtype="float32"):
    assert (found.verdict, found.faults, found.unexplained) == ("clean", [], [])
    assert found.dtype == dtype and found.compared > 0
    assert found.counterfactual == [] and found.unmatched == []


@sampled(1, "qwen3_moe/separate-bfloat16")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_right_port_is_clean_at_every_level(name, dtype):
    for level in ("modules", "layers", "logits"):
        check_clean(explained(name, port(name, dtype=dtype, level=level)), dtype)


@long
@pytest.mark.parametrize("name", ["models/affine_mixed", "gemma4/effective", "gemma4/sparse"])
def test_a_right_port_of_other_models_is_clean(name):
    for level in ("modules", "logits"):
        check_clean(explained(name, port(name, level=level)))


@sampled(1, "float16-layers")
@pytest.mark.parametrize("level", ["layers", "logits"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_right_port_in_half_precision_of_gemma_is_clean(dtype, level):
    name = "gemma4/sparse"
    check_clean(explained(name, port(name, dtype=dtype, level=level)), dtype)


@sampled(1, "gemma4/sparse-2")
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("name", ["models/untied_float32", "gemma4/sparse", "qwen3_moe/separate"])
def test_a_short_prompt_is_enough_for_what_it_shows(name, length):
    for level in ("modules", "logits"):
        check_clean(explained(name, port(name, level=level, length=length), length=length))
    bug = "embed-scale-missing" if "gemma" in name else "norm-plus-one-missing"
    found = explained(name, port(name, [bug], length=length), length=length)
    assert ids(found) == {bug} and not found.unexplained


@long
@pytest.mark.parametrize("name", ["models/untied_float32", "qwen3_moe/separate", "gemma4/sparse"])
def test_the_reference_in_half_precision_is_a_right_port(name):
    model, taps = reference.load(WITNESSES / name, dtype="bfloat16"), {}
    model.forward(prompt(model_of(name)), trace=taps.__setitem__)
    modules = {tap: value for tap, value in taps.items() if is_of("modules", tap)}
    check_clean(explained(name, modules), "bfloat16")


@long
def test_half_precision_that_is_stored_wide_is_judged_as_what_it_is():
    name = "models/untied_float32"
    wide = {k: v.astype(np.float32) for k, v in port(name, dtype="bfloat16").items()}
    found = explained(name, wide)
    check_clean(found, "bfloat16")
    assert found.conventions == ["stored as float32, but most values are bfloat16: judged as that"]
    strict = explained(name, wide, (), dtype="float32")
    assert (strict.dtype, strict.verdict) == ("float32", "unknown")


@long
def test_a_router_in_float32_does_not_make_a_half_precision_port_one_of_float32():
    name = "qwen3_moe/separate"
    taps = port(name, dtype="bfloat16")
    gate = next(tap for tap in taps if tap.endswith("mlp.gate"))
    taps[gate] = taps[gate].astype(np.float32) * np.float32(1 + 1e-5)
    check_clean(explained(name, taps), "bfloat16")


def exchanged(one, other):
    """Give each of two experts what the other counts, in every layer."""

    def after(ops, routing):
        changed = routing.copy()
        changed[..., [one, other]] = routing[..., [other, one]]
        return changed

    return lambda call, graph: call.followed(after) if call.op == "top_k_routing" else None


@pytest.fixture
def tied(tmp_path):
    """A model in whose routers two experts tie, for every token."""
    folder = shutil.copytree(WITNESSES / "qwen3_moe/separate", tmp_path / "tied")
    tensors = load_file(folder / "model.safetensors")
    for name, value in tensors.items():
        if name.endswith("mlp.gate.weight"):
            value[1] = value[0]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_either_choice_of_a_tie_is_right(tied, level, monkeypatch):
    right = port(tied, level=level)
    monkeypatch.setattr(ports, "rewrite_of", lambda bug: exchanged(0, 1))
    other = port(tied, ["exchanged"], level=level)
    assert not np.allclose(right["model.layers.1"], other["model.layers.1"])
    check_clean(explained(tied, right))
    check_clean(explained(tied, other))


@pytest.fixture
def undecided(tmp_path):
    """A model whose routers have no preference at all: the choice of every token is a tie."""
    folder = shutil.copytree(WITNESSES / "qwen3_moe/separate", tmp_path / "undecided")
    tensors = load_file(folder / "model.safetensors")
    for name, value in tensors.items():
        if name.endswith("mlp.gate.weight"):
            value[:] = 0
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


@long
@pytest.mark.parametrize("dtype", DTYPES)
def test_choices_are_found_where_every_token_depends_on_one(undecided, dtype, monkeypatch):
    """By law: any expert is right. One layer takes the first that was left out for one chosen."""
    chosen = model_of(undecided).config.num_experts_per_tok
    last = model_of(undecided).config.num_hidden_layers - 1
    monkeypatch.setattr(ports, "rewrite_of", lambda bug: exchanged(0, chosen))
    options = {"dtype": dtype, "level": "logits"}
    right = port(undecided, **options)
    other = port(undecided, ["exchanged"], where=lambda call: call.layer == last, **options)
    assert not np.allclose(right["logits"], other["logits"], atol=0.05)
    check_clean(explained(undecided, right, ()), dtype)
    check_clean(explained(undecided, other, ()), dtype)


@long
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_choice_hides_a_bug_of_a_token_that_depends_on_one(undecided, dtype):
    taps = port(undecided, ["norm-applied-twice"], dtype=dtype, level="logits")
    assert explained(undecided, taps, ()).verdict == "unknown"
    off = port(undecided, dtype=dtype, level="logits")
    off["logits"][0, 7:] *= 1.05
    assert explained(undecided, off, ()).verdict == "unknown"


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_another_choice_where_nothing_ties_is_wrong(level, monkeypatch):
    name = "qwen3_moe/separate"
    monkeypatch.setattr(ports, "rewrite_of", lambda bug: exchanged(0, 1))
    found = explained(name, port(name, ["exchanged"], level=level), ())
    assert found.verdict == "unknown"
    wanted = {"modules": "mlp.experts", "layers": "layers.1"}[level]
    assert any(one.tap.endswith(wanted) for one in found.unexplained)


def test_which_choices_are_near():
    """By hand: two experts of four; the second and the third lie this far apart."""
    centre = np.array([[[3.0, 2.0, 1.0, 0.0], [3.0, 2.0, 2.0 - 1e-6, 0.0]]])
    spread = [centre + 1e-7, centre - 0.5e-7]
    assert near_choice(centre, spread, 2).tolist() == [[False, True]]
    assert near_choice(centre, [centre], 2).tolist() == [[False, False]]
    assert near_choice(centre, spread, 4).tolist() == [[False, False]]
    centre[0, 0, 1] = np.nan
    assert near_choice(centre, spread, 2)[0, 0]
