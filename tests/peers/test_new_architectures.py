"""Ports of architectures that Lockstep does not have, judged by transformers' own modules.

By hand: the bugs are planted in one module of a torch model each, so it is known whose own error
they are. By witness: mlx-lm's models, which nobody here wrote, are right ports.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx_lm.utils import load_model

from lockstep import parity, reference
from lockstep.parity.cli import main
from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.reference import ops
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model
from tests.peers.new_architectures.bugs import BUGS, Bug
from tests.peers.new_architectures.builds import ARCHITECTURES, TOKENS, Folders, loaded, make
from tests.peers.new_architectures.runs import captured, only, published, wrong
from tests.witnesses import build

WITNESSES = Path(__file__).parents[1] / "witnesses"
DTYPES = ("float32", "bfloat16")
LAYER = re.compile(r"model\.layers\.[0-9]+")
EAGER_ALONE = ("GptOss", "Gemma2")  # transformers has no fused attention with sinks or a cap
ENDS = ("model.embed_tokens", "model.norm", "logits")


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    build.settle()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("models"))


def planted(bug: Bug, folder: Any, dtype: str) -> Dump:
    model = loaded(folder(bug.architecture), dtype)
    bug.plant(model)
    return captured(model)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_the_own_error_of_its_module_alone(bug, dtype, folder):
    dump = planted(bug, folder, dtype)
    result = parity.diff(dump, dump, model=folder(bug.architecture))
    assert (wrong(result), result.wiring) == ([bug.tap], [])
    assert result.compared > 25


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_in_a_dump_of_layers_it_is_that_of_its_layer_alone(bug, folder):
    """Of either dtype every second bug: above each is judged in both."""
    dump = planted(bug, folder, DTYPES[BUGS.index(bug) % 2])
    coarse = only(dump, lambda name: LAYER.fullmatch(name) or name in ENDS)
    result = parity.diff(coarse, coarse, model=folder(bug.architecture))
    found = LAYER.match(bug.tap)
    assert wrong(result) == [found[0] if found else bug.tap]
    assert result.compared == 6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["Olmo2", "Olmoe"])
def test_several_bugs_at_once_are_all_seen(name, dtype, folder):
    bugs = [bug for bug in BUGS if bug.architecture == name]
    model = loaded(folder(name), dtype)
    for bug in bugs:
        bug.plant(model)
    dump = captured(model)
    result = parity.diff(dump, dump, model=folder(name))
    assert sorted(wrong(result)) == sorted(bug.tap for bug in bugs) and len(bugs) > 1


@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_right_ports_of_torch_raise_no_alarm(name, dtype, folder):
    """Eager and fused attention are among the ways that make the noise; experts run otherwise."""
    for attention in ("eager", "sdpa")[: 1 + (name not in EAGER_ALONE)]:
        dump = captured(loaded(folder(name), dtype, attention))
        result = parity.diff(dump, dump, model=folder(name))
        assert wrong(result) == [] and result.compared > 25
        assert result.verdict == "parity"


# What mlx-lm does otherwise is left out: it has no windows in Phi-3 and Gemma 2, and in Gemma 3 it
# rounds the embedding's scale to bfloat16, whatever the dtype.
OF_MLX_LM: dict[str, tuple[str, ...]] = {
    "Olmo2": ("float32", "bfloat16", "float16"),
    "Cohere2": ("float32", "bfloat16", "float16"),
    "Granite": ("float32", "bfloat16", "float16"),
    "Gemma3Text": ("bfloat16",),
    "Olmoe": ("float32",),  # MLX on a CPU multiplies by gathered experts in float32 alone
    "Mixtral": ("float32",),
    "DeepseekV3": ("float32",),
}


@pytest.mark.parametrize("name", OF_MLX_LM)
def test_right_ports_of_mlx_lm_raise_no_alarm(name, folder, tmp_path):
    """No way was made for these: how MLX rounds is nowhere in transformers."""
    path = published(folder(name), tmp_path)
    for dtype in OF_MLX_LM[name]:
        model, _ = load_model(path)
        model.set_dtype(getattr(mx, dtype))
        with parity.capture.mlx(model) as dump:
            model(mx.array([TOKENS]))
        result = parity.diff(dump, dump, model=folder(name))
        assert wrong(result) == []
        assert len([tap for tap in result.taps if tap.ratio is not None]) >= 25


@pytest.mark.parametrize("name", ["Olmo2", "Granite"])
def test_wider_right_ports_of_mlx_lm_raise_no_alarm(name, tmp_path):
    """Sums of 512 numbers: how MLX orders those of a norm is the largest part of its error."""
    wide = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
    path = make(name, tmp_path / "model", 3, **wide)
    ids = torch.randint(0, 96, (96,), generator=torch.Generator().manual_seed(1)).tolist()
    (tmp_path / "published").mkdir()
    model, _ = load_model(published(path, tmp_path / "published"))
    model.set_dtype(mx.float32)
    with parity.capture.mlx(model) as dump:
        model(mx.array([ids]))
    result = parity.diff(dump, dump, model=path)
    assert wrong(result) == [] and result.compared > 30


def test_an_embedding_that_is_scaled_behind_its_module_is_a_convention(folder):
    """By hand: the module hands out rows of the table, and all that reads them has them scaled."""
    model = loaded(folder("Gemma3Text"), "float32")
    embedding, bare = model.model.embed_tokens, torch.nn.functional.embedding
    with parity.capture.torch(model) as dump, torch.no_grad():
        model(torch.tensor([TOKENS]))
    rows = bare(torch.tensor([TOKENS]), embedding.weight).detach().numpy()
    tap = "model.embed_tokens"
    port = Dump(dump.path, dump.shapes, lambda n: rows if n == tap else dump.read(n), dump.about)
    result = parity.diff(dump, port, model=folder("Gemma3Text"))
    assert result.verdict == "parity"
    told = "right: model.embed_tokens holds rows of the table, which transformers scales by 6.9282"
    assert [line for line in result.conventions if line.startswith(told)]


@pytest.mark.parametrize("backend", ["reference", "cpu", "mlx"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", ["llama/mistral_window", "gpt2/original", "qwen3_moe/separate"])
def test_modules_judge_our_backends_as_the_reference_does(path, dtype, backend, tmp_path, capsys):
    """By witness: three more right ports, over steps."""
    run = ["--tokens", "3,1,4,1,5,9,2,6", "--decode", "2"]
    out, model = str(tmp_path / "dump"), str(WITNESSES / path)
    assert main(["trace", model, *run, "--backend", backend, "--dtype", dtype, "-o", out]) == 0
    assert main(["diff", out, out, "--model", model, "--backend", "transformers"]) == 0
    assert "transformers" in capsys.readouterr().out


def test_a_port_in_float64_is_judged_as_that(folder, tmp_path, capsys):
    """By law: legal ways of float64 are as near as float64 is, and float32 is no such way."""
    out, run = {}, ["--tokens", "3,1,4,1,5,9", "--backend", "transformers"]
    for dtype in ("float64", "float32"):
        out[dtype] = tmp_path / dtype
        said = [*run, "--dtype", dtype, "-o", str(out[dtype])]
        assert main(["trace", str(folder("Gemma3Text")), *said]) == 0
    result = parity.diff(out["float64"], out["float64"], model=folder("Gemma3Text"))
    noise = [tap.noise for tap in result.taps if tap.noise is not None]
    assert result.verdict == "parity"
    assert max(noise) < 1e-13 and len(noise) == result.compared
    coarse = open_dump(out["float32"])
    widened = Dump(coarse.path, coarse.shapes, coarse.read, dict(coarse.about, dtype="float64"))
    result = parity.diff(out["float64"], widened, model=folder("Gemma3Text"))
    assert "model.layers.0.self_attn.q_proj" in wrong(result)


def test_steps_are_judged_with_the_port_s_own_cache(folder):
    """By hand: keys of the prompt that are wrong in themselves stay the prompt's error."""
    model = loaded(folder("Olmo2"), "float32")
    layer = model.model.layers[1].self_attn
    forward = layer.k_proj.forward
    layer.k_proj.forward = lambda x: forward(x) * (1.3 if x.shape[1] > 1 else 1.0)
    with parity.capture.torch(model) as dump, torch.no_grad():
        made = model(torch.tensor([TOKENS]), use_cache=True)
        model(torch.tensor([[7]]), past_key_values=made.past_key_values)
    result = parity.diff(dump, dump, model=folder("Olmo2"))
    assert wrong(result) == ["model.layers.1.self_attn.k_proj"]
    steps = [tap for tap in result.taps if tap.name.startswith("step.1/")]
    assert len(steps) > 40 and dump.decoded == [7]
    assert any(tap.status == "inherited" for tap in steps)


def test_a_step_of_several_tokens_is_fed_so(folder):
    """By hand: a chunk of three tokens, as the capture says in step_lengths."""
    model = loaded(folder("Olmo2"), "float32")
    with parity.capture.torch(model) as dump, torch.no_grad():
        made = model(torch.tensor([TOKENS]), use_cache=True)
        model(torch.tensor([[7, 5, 9]]), past_key_values=made.past_key_values)
    assert dump.fed == [[7, 5, 9]]
    result = parity.diff(dump, dump, model=folder("Olmo2"))
    assert wrong(result) == []
    assert sum(tap.name.startswith("step.1/") for tap in result.taps) > 40
    odd = replace(dump, about={**dump.about, "decoded": "[7, 5, 999999]"})
    with pytest.raises(InputError, match="token 2 of decoded"):
        parity.diff(odd, odd, model=folder("Olmo2"))


def test_the_report_names_what_a_module_was_fed(folder):
    """By hand."""
    bug = next(bug for bug in BUGS if bug.name == "scale")
    dump = planted(bug, folder, "float32")
    result = parity.diff(dump, dump, model=folder("Olmo2"))
    assert result.first_divergence is not None
    assert result.first_divergence.op == "Linear from model.rotary_emb, q_norm, k_norm, v_proj"
    made = {tap.name: tap.op for tap in result.taps}
    fed_by = "model.layers.0, post_attention_layernorm, post_feedforward_layernorm"
    assert made["model.layers.1"] == f"Olmo2DecoderLayer from {fed_by}"
    assert any("legal ways show: eager, fused, orders" in note for note in result.notes)


def test_a_mixture_s_experts_are_fed_by_their_router_too(folder):
    """By hand: what the router chose is no module's first output."""
    dump = captured(loaded(folder("Olmoe"), "float32"))
    made = {tap.name: tap.op for tap in parity.diff(dump, dump, model=folder("Olmoe")).taps}
    stream = "model.layers.1.post_attention_layernorm"
    assert made["model.layers.1.mlp.gate"] == f"OlmoeTopKRouter from {stream}"
    assert made["model.layers.1.mlp.experts"] == f"OlmoeExperts from {stream}, gate"


def test_what_enters_the_last_projection_is_a_tap(tmp_path):
    """By hand: larger scores are wrong before `o_proj`, whose own error they are not."""

    def louder(queries: Any, keys: Any, *, scale: float) -> Any:
        return ops.attention_scores(queries, keys, scale=1.1 * scale)

    path, taps = WITNESSES / "llama/mistral_window", {}
    named = {name: getattr(ops, name) for name in ops.__all__} | {"attention_scores": louder}
    model = Model(open_checkpoint(path), dtype="float32", ops=SimpleNamespace(**named))
    model.forward(np.array([TOKENS]), trace=taps.__setitem__)
    shapes = {name: value.shape for name, value in taps.items()}
    port = Dump(tmp_path, shapes, taps.__getitem__, {"tokens": json.dumps(TOKENS)})
    result = parity.diff(port, port, model=path)
    assert wrong(result) == [f"model.layers.{layer}.self_attn.context" for layer in (0, 1)]
    made = {tap.name: tap.op for tap in result.taps}
    assert made["model.layers.0.self_attn.o_proj"] == "Linear from context"
    assert (
        made["model.layers.0.self_attn.context"] == "MistralAttention from q_proj, k_proj, v_proj"
    )


def test_a_tap_of_another_shape_is_wrong_and_nothing_else_is(folder):
    """By hand: a head too few, which nothing may be broadcast to fit."""
    dump = captured(loaded(folder("Olmo2"), "float32"))
    tap = "model.layers.1.mlp.up_proj"
    shapes = dict(dump.shapes) | {tap: (1, len(TOKENS), 63)}
    cut = Dump(dump.path, shapes, lambda name: dump.read(name)[..., : shapes[name][-1]], dump.about)
    result = parity.diff(cut, cut, model=folder("Olmo2"))
    assert wrong(result) == [tap]


def test_nothing_stays_behind_on_the_model(folder):
    """By law: after all ways the weights have their bits again, and no hook is left."""
    from lockstep.parity.torch_modules.casting import held_exactly, nearby_frequencies
    from lockstep.parity.torch_modules.loading import load

    model = load(folder("Gemma3Text"), dtype="bfloat16").module
    before = {
        name: one.clone() for name, one in [*model.named_parameters(), *model.named_buffers()]
    }
    with held_exactly(model):
        assert {one.dtype for one in model.parameters()} == {torch.float64}
    with nearby_frequencies(model):
        pass
    after = dict([*model.named_parameters(), *model.named_buffers()])
    assert before.keys() == after.keys()
    for name, one in before.items():
        assert one.dtype == after[name].dtype and torch.equal(one, after[name])


def test_a_reference_model_and_the_modules_agree_on_whose_error_it_is(tmp_path):
    """By witness: the reference, which has this architecture, names the same tap."""
    path = WITNESSES / "llama/mistral_window"
    model = loaded(path, "float32")
    model.model.layers[1].self_attn.scaling *= 1.1
    dump = captured(model)
    by_modules = parity.diff(dump, dump, model=path)
    by_reference = parity.diff(dump, dump, model=reference.load(path))
    assert wrong(by_modules) == wrong(by_reference) == ["model.layers.1.self_attn.o_proj"]
    theirs = {tap.name: tap for tap in by_reference.taps if tap.ratio is not None}
    both = [tap for tap in by_modules.taps if tap.ratio is not None and tap.name in theirs]
    assert len(both) > 25
    for one, other in ((tap, theirs[tap.name]) for tap in both):
        assert np.isclose(one.own_error, other.own_error, rtol=0.5, atol=1e-6)
