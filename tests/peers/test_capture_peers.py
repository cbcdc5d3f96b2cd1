"""Captures of transformers' models: nothing changes, and every name means what it is mapped to.

By witness, live: each tensor that is mapped to a tap is compared with the reference's tap, so a
module that is mapped wrongly cannot pass; and what is mapped to none is listed here.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from lockstep import parity, reference
from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.parity.naming.align import align
from lockstep.parity.naming.names import is_tap
from lockstep.reference.checkpoint.errors import InputError
from tests.witnesses import build, build_gemma4, build_gpt2, build_llama, build_qwen3_moe

ROOT = Path(__file__).parents[2]
TOKENS = [[3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32]]
IDS = torch.tensor(TOKENS)
NUMBERED = re.compile(r"\.[0-9]+\b")
# What no hook can see: it is no module's output.
INSIDE = {"residual", "scores", "probs", "context", "q_rope", "k_rope", "routing"}
ROTARY = {"model.rotary_emb"}
EXPERTS = {"model.layers.*.mlp.experts.act_fn"}


def llama_like(family: str) -> Any:
    # mlx-lm takes the width of heads in Qwen2 from that of the stream, and has no window there.
    sizes = {"head_dim": 6, "use_sliding_window": False} if family == "qwen2" else {}
    return build_llama.random_model(1, build_llama.config(family, "default", **sizes))


MODELS = {
    "llama": (lambda: llama_like("llama"), ROTARY),
    "mistral": (lambda: llama_like("mistral"), ROTARY),
    "qwen2": (lambda: llama_like("qwen2"), ROTARY),
    "qwen3": (lambda: build.random_model(1, **build.SMALL), ROTARY),
    "qwen3_moe": (
        lambda: build_qwen3_moe.random_model(1, **build_qwen3_moe.SMALL),
        ROTARY | EXPERTS,
    ),
    "gpt2": (lambda: build_gpt2.random_model(1, **build_gpt2.SMALL), set()),
    "gemma4 31B": (lambda: build_gemma4.random_model(1, **build_gemma4.DENSE), ROTARY),
    "gemma4 26B-A4B": (
        lambda: build_gemma4.random_model(1, **build_gemma4.SPARSE),
        ROTARY | {"model.layers.*.experts.act_fn", "model.layers.*.router"},
    ),
    "gemma4 E2B": (lambda: build_gemma4.random_model(1, **build_gemma4.SMALL_BUILD), ROTARY),
}


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    build.settle()


def run(model: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **kwargs)


def captured(model: Any, ids: torch.Tensor = IDS) -> Any:
    with parity.capture.torch(model) as dump:
        run(model, ids)
    return dump


def hooks_of(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def reference_taps(folder: Path) -> dict[str, np.ndarray]:
    taps: dict[str, np.ndarray] = {}
    reference.load(folder).forward(np.array(TOKENS), trace=taps.__setitem__)
    return taps


def compared(dump: Dump, taps: dict[str, np.ndarray]) -> tuple[set[str], set[str], dict]:
    """Hold each mapped tensor against its tap.

    Returns what is mapped to none, what is not dumped, and of what has other values the ratio.
    """
    aligned, rest, apart = align(dump, known=taps), set(), {}
    for tap, name in aligned.names.items():
        if tap not in taps:
            rest.add(NUMBERED.sub(".*", name).partition("@")[0])
            continue
        value, truth = aligned.read(tap, taps[tap].shape), taps[tap].astype(np.float64)
        assert value.shape == truth.shape, (name, value.shape, truth.shape)
        if np.sqrt(np.mean((value - truth) ** 2)) > 1e-4 * np.sqrt(np.mean(truth**2)):
            ratio = float(np.sum(truth * value) / np.sum(value * value))
            assert np.abs(value * ratio - truth).max() < 1e-4 * np.abs(truth).max(), name
            apart[NUMBERED.sub(".*", tap)] = round(ratio**2, 3)
    return rest, {tap for tap in taps if tap not in aligned.names}, apart


@pytest.mark.parametrize("name", MODELS)
def test_every_module_of_transformers_means_what_it_is_mapped_to(name, tmp_path):
    make, known = MODELS[name]
    model = make()
    dump = captured(model)
    build.save(model, tmp_path / "model", dtype="float32")
    rest, absent, apart = compared(dump, reference_taps(tmp_path / "model"))
    assert (rest, apart) == (known, {})
    inside = INSIDE | ({"per_layer_inputs"} if name == "gemma4 E2B" else set())
    assert {tap.rpartition(".")[2] for tap in absent} <= inside


@contextmanager
def mlx_hooks(model: Any, found: dict[str, np.ndarray]) -> Iterator[None]:
    """Note the output of every module of an mlx-lm model, by a wrapper around their classes."""
    names = {id(module): name for name, module in model.named_modules()}
    classes = {type(module) for _, module in model.named_modules() if callable(module)}
    own = {kind: kind.__call__ for kind in classes}

    def noting(call: Any) -> Any:
        def noted(module: Any, *args: Any, **kwargs: Any) -> Any:
            output = call(module, *args, **kwargs)
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, mx.array) and names.get(id(module)):
                found[names[id(module)]] = np.array(first.astype(mx.float32))
            return output

        return noted

    for kind, call in own.items():
        kind.__call__ = noting(call)
    try:
        yield
    finally:
        for kind, call in own.items():
            kind.__call__ = call


def spelled(spell: Any) -> Any:
    return lambda folder: build.edit_config(folder, spell)


# What mlx-lm's modules are that no tap is, and how its reader wants a folder to be.
GEMMA = spelled(build_gemma4.spell_as_published)
MLX = {
    "llama": (set(), None),
    "qwen2": (set(), spelled(lambda keys: build_llama.spell_as_before_5(keys, "rope_type"))),
    "qwen3": (set(), None),
    "qwen3_moe": ({"mlp.switch_mlp"}, spelled(build_qwen3_moe.spell_as_before_5)),
    "gpt2": ({"model"}, build_gpt2.as_on_the_hub),
    "gemma4 31B": (set(), GEMMA),
    "gemma4 26B-A4B": ({"router", "experts.switch_glu"}, GEMMA),
    "gemma4 E2B": (set(), GEMMA),
}
# It scales embeddings beside their modules: the square of the ratio is the width.
UNSCALED = {"model.embed_tokens": 32.0, "model.embed_tokens_per_layer": 16.0}


@pytest.mark.parametrize("name", MLX)
def test_every_module_of_mlx_lm_means_what_it_is_mapped_to(name, tmp_path):
    folder = build.save(MODELS[name][0](), tmp_path / "model", dtype="float32")
    known, prepare = MLX[name]
    if prepare is not None:
        prepare(folder)
    build.write_tokenizer(folder)
    found: dict[str, np.ndarray] = {}
    model, _ = mlx_lm.load(str(folder))
    with mlx_hooks(model, found), mx.stream(mx.cpu):
        logits = model(mx.array(TOKENS))
        found["logits"] = np.array(logits.astype(mx.float32))
    dump = Dump(Path("mlx"), {key: x.shape for key, x in found.items()}, found.__getitem__)
    rest, _, apart = compared(dump, reference_taps(folder))
    wide = [*UNSCALED][: ("gemma4" in name) + (name == "gemma4 E2B")]
    assert apart == {tap: UNSCALED[tap] for tap in wide}
    assert {part for part in known if any(part in one for one in rest)} == known
    assert [one for one in rest if not any(part in one for part in (*known, "rope"))] == []


def bits(output: Any) -> bytes:
    return output.logits.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "gemma4 31B"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_capture_changes_no_bit(name, dtype, attention):
    model = MODELS[name][0]().to(dtype)
    model.set_attn_implementation(attention)
    before = bits(run(model, IDS))
    with parity.capture.torch(model) as dump:
        during = bits(run(model, IDS))
    assert before == during == bits(run(model, IDS))
    assert hooks_of(model) == 0
    kind = str(dtype).removeprefix("torch.")
    assert dump.about["dtype"] == kind and dump.read("logits").dtype.name == kind
    assert dump.read("logits").tobytes() == before
    assert dump.nbytes > 0 and dump.seconds > 0


def test_gradients_pass_as_before():
    model = MODELS["qwen3"][0]()
    with parity.capture.torch(model):
        model(IDS).logits.sum().backward()
    assert model.lm_head.weight.grad is not None


def test_hooks_go_with_an_exception_and_the_exception_stays():
    model = MODELS["qwen3"][0]()
    with pytest.raises(ZeroDivisionError), parity.capture.torch(model):
        run(model, IDS)
        raise ZeroDivisionError
    assert hooks_of(model) == 0


def test_hooks_of_others_stay_and_what_they_change_is_captured():
    model = MODELS["qwen3"][0]()
    handle = model.model.norm.register_forward_hook(lambda m, args, out: out * 2)
    plain = captured(MODELS["qwen3"][0]()).read("model.norm")
    np.testing.assert_array_equal(captured(model).read("model.norm"), 2 * plain)
    assert hooks_of(model) == 1
    handle.remove()


class Own(torch.nn.Module):
    """A class of one's own around a model, which hands on the logits."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids).logits


WRAPPERS = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "parallel": torch.nn.DataParallel,
    "own class": Own,
    "all of them": lambda model: torch.nn.DataParallel(torch.compile(Own(model), backend="eager")),
    "adapted": lambda model: get_peft_model(
        model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=True)
    ),
}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT's own
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_model_has_the_same_taps(wrapper):
    plain = align(captured(MODELS["qwen3"][0]()))
    dump = captured(WRAPPERS[wrapper](MODELS["qwen3"][0]()))
    wrapped = align(dump)
    assert dump.tokens == TOKENS[0]
    taps = {tap for tap in plain.names if is_tap(tap)}
    assert taps <= wrapped.names.keys()
    for tap in taps:
        np.testing.assert_array_equal(wrapped.read(tap), plain.read(tap), err_msg=tap)
    assert ("compiled" in " ".join(dump.notes)) == (wrapper in ("compiled", "all of them"))


def test_the_inner_model_alone_and_without_its_forward_being_called():
    model = MODELS["qwen3"][0]()
    inner = captured(model.model)
    assert align(inner).names["model.norm"] == "norm" and inner.tokens == TOKENS[0]
    with parity.capture.torch(model) as dump, torch.no_grad():
        model.forward(IDS)
    assert dump.tokens == TOKENS[0] and "lm_head" in dump.shapes


def test_generation_makes_steps(tmp_path):
    model = MODELS["qwen3"][0]()
    with parity.capture.torch(model) as dump, torch.no_grad():
        ids = model.generate(IDS, max_new_tokens=3, do_sample=False, eos_token_id=None)
    new = ids[0, IDS.shape[1] :].tolist()
    assert (dump.tokens, dump.decoded) == (TOKENS[0], new[:2])
    assert dump.shapes["step.2/model.layers.1"] == (1, 1, model.config.hidden_size)
    dump.save(tmp_path / "port.safetensors")
    assert open_dump(tmp_path / "port.safetensors").decoded == new[:2]


def test_another_prompt_is_another_pass():
    model = MODELS["qwen3"][0]()
    with parity.capture.torch(model) as dump:
        run(model, IDS)
        run(model, IDS[:, :5])
    assert dump.shapes["pass.2/logits"][1] == 5 and dump.shapes["logits"][1] == IDS.shape[1]
    assert dump.decoded == [] and "pass 2" in dump.notes[0]


def test_embeddings_and_batches_say_no_tokens():
    model = MODELS["qwen3"][0]()
    embedded = model.get_input_embeddings()(IDS).detach()
    with parity.capture.torch(model) as dump:
        run(model, inputs_embeds=embedded)
    assert dump.tokens is None
    dump = captured(model, IDS.repeat(2, 1))
    assert dump.tokens is None and dump.batch == [*map(list, TOKENS * 2)] and not dump.notes


def test_what_a_model_writes_over_is_kept_as_it_was():
    class Overwriting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x * 1)
            y += 1
            return y

    dump = captured(Overwriting(), torch.zeros(1, 2, 3))
    assert not dump.read("norm").any() and (dump.read("output") == 1).all()


def test_a_module_that_runs_twice_is_kept_apart():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.norm(x))

    dump = captured(Twice(), torch.ones(1, 2, 3))
    assert {"norm@1", "norm@2"} <= dump.shapes.keys() and "norm" not in dump.shapes
    assert "norm 2 times" in dump.notes[0]


def test_modules_that_were_passed_by_are_told():
    class Fused(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.head(torch.nn.functional.linear(x, self.norm.weight))}

    dump = captured(Fused(), torch.ones(1, 2, 3))
    assert dump.notes == ["1 of 2 modules with weights were not called, such as norm"]
    assert [*dump.shapes] == ["head", "logits"]


def test_what_no_trace_can_hold_is_said():
    class Complex(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.odd, self.norm = torch.nn.Identity(), torch.nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.odd(x.to(torch.complex64))
            return self.norm(x)

    dump = captured(Complex(), torch.ones(1, 2, 3))
    assert "odd hands out complex64" in dump.notes[0] and "odd" not in dump.shapes


def test_a_model_that_did_not_run_is_refused():
    with (
        pytest.raises(InputError, match="nothing was captured"),
        parity.capture.torch(MODELS["qwen3"][0]()),
    ):
        pass


def test_the_example_of_the_page_is_true(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/parity/capture.md").read_text(encoding="utf-8")
    example = re.search(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    exec(example[1], {})
    assert capsys.readouterr().out == example[2]
    assert open_dump(tmp_path / "port.safetensors").is_trace


def test_a_capture_is_compared_as_any_dump_is(tmp_path):
    model = MODELS["gemma4 26B-A4B"][0]()
    folder = build.save(model, tmp_path / "model", dtype="float32")
    dump = captured(model)
    left = tmp_path / "left.safetensors"
    dump.save(left)
    result = parity.diff(left, dump, model=reference.load(folder))
    assert result.verdict == "parity" and result.compared > 40
