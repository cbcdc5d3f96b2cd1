"""Models with adapters, against peft and mlx-lm in float32. By witness: README.md beside this."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save

from lockstep.reference.checkpoint.adapters import Adapter, Adapters
from lockstep.reference.checkpoint.adapters.homes import home_of
from lockstep.reference.ops import dequantize
from tests.tolerances import assert_same_bits
from tests.witnesses.judge import error
from tests.witnesses.runners import Runner

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "adapters"
NAMES = sorted(path.name for path in FOLDER.iterdir())


class Case(NamedTuple):
    folder: Path
    base: Path
    tokens: np.ndarray
    logits: np.ndarray


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    folder = FOLDER / request.param
    with np.load(folder / "expected.npz") as kept:
        return Case(folder, ROOT / str(kept["base"]), kept["tokens"], kept["logits"])


@pytest.fixture(scope="module")
def runner(case: Case, engine: str) -> Runner:
    return adapted(Runner(engine, case.base), case.folder)


def adapted(runner: Runner, folder: Path | None) -> Runner:
    runner.model = runner.model.with_adapter(folder)
    return runner


def test_logits(case, runner, judge):
    judge(runner.name, case.folder.name, runner.logits(case.tokens), case.logits)


def test_logits_in_float64(case, judge):
    found = adapted(Runner("float64", case.base), case.folder).exact(case.tokens)
    assert found.dtype == np.float64
    judge("float64", case.folder.name, found, case.logits)


def test_the_adapter_is_seen(case, engine):
    """By law: the base alone is far from the witness."""
    assert error(Runner(engine, case.base).logits(case.tokens), case.logits) > 0.5


def test_cached(case, runner, judge):
    found = runner.chunked(case.tokens, [5, 1, 1, 5])
    judge(runner.name, f"{case.folder.name}, cached", found, case.logits)


def test_swapped_and_taken_off(case, engine):
    """By law: the base is untouched by an adapter that came and went."""
    runner = Runner(engine, case.base)
    base, weights = runner.exact(case.tokens), getattr(runner.model, "weights", None)
    changed = adapted(runner, case.folder).exact(case.tokens)
    held = getattr(runner.model, "weights", None)
    assert runner.model.adapters.weights or held is weights
    assert not np.array_equal(base, changed)
    assert_same_bits(adapted(runner, None).exact(case.tokens), base)
    assert getattr(runner.model, "weights", None) is weights


def test_loaded_with_the_model(case, engine):
    """By law: `load(path, adapter)` is `load(path).with_adapter(adapter)`."""
    from lockstep import fast, reference

    plain = adapted(Runner(engine, case.base), case.folder)
    other: dict[str, Any] = {} if engine == "reference" else {"backend": engine}
    package = reference if engine == "reference" else fast
    model = package.load(case.base, case.folder, **other)
    assert_same_bits(plain.host(model.forward(case.tokens)), plain.exact(case.tokens))


def changed(case: Case, engine: str, edit: Any) -> Runner:
    """Run a case with each of its adapters edited after it was read."""
    runner = adapted(Runner(engine, case.base), case.folder)
    modules = runner.model.adapters.modules
    for path, adapter in modules.items():
        modules[path] = edit(adapter)
    return runner


def test_divided_by_the_rank_again(case, engine):
    """By law: who divides a scale that is one already is far off. A rank of 1 hides it, alone."""

    def again(adapter: Adapter) -> Adapter:
        rank = adapter.a.shape[-2]
        return Adapter(adapter.a, adapter.b, adapter.scale / rank, adapter.magnitude)

    assert error(changed(case, engine, again).logits(case.tokens), case.logits) > 0.1


def test_nothing_learned_changes_nothing(case, engine):
    """By law: B = 0, as training begins, gives the bits of the base."""
    runner = changed(case, engine, lambda one: Adapter(one.a, 0 * one.b, one.scale, None))
    plain = Runner(engine, case.base)
    if runner.model.adapters.weights:  # whole weights stay, and they are something learned
        adapted(plain, case.folder).model.adapters.modules.clear()
    assert_same_bits(runner.exact(case.tokens), plain.exact(case.tokens))


@pytest.mark.parametrize("name", ["mlx_lora", "mlx_trained"])
def test_layers_below_the_first_adapted_one_are_untouched(name, engine):
    """By law: mlx-lm adapts the last layers alone."""
    with np.load(FOLDER / name / "expected.npz") as kept:
        base, tokens = ROOT / str(kept["base"]), kept["tokens"]
    runner = Runner(engine, base)
    before = runner.taps(tokens)
    after = adapted(runner, FOLDER / name).taps(tokens)
    first = min(int(path.split(".")[2]) for path in runner.model.adapters.modules)
    assert first > 0
    assert_same_bits(after[f"model.layers.{first - 1}"], before[f"model.layers.{first - 1}"])
    assert not np.array_equal(after[f"model.layers.{first}"], before[f"model.layers.{first}"])


def test_a_bad_adapter_leaves_the_model_as_it_was(case, runner, tmp_path):
    """By law: all is checked before anything changes."""
    folder = tmp_path / "cut"
    shutil.copytree(case.folder, folder)
    file = next(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-4])
    kept = runner.model.adapters
    with pytest.raises(ValueError, match="safetensors"):
        runner.model.with_adapter(folder)
    assert runner.model.adapters is kept


class Asked(dict[str, Adapter]):
    """Holds no adapter, and remembers which projections asked for one."""

    def __init__(self) -> None:
        self.paths: set[str] = set()

    def get(self, path: str, default: Any = None) -> Any:
        self.paths.add(path)
        return default


BASES = sorted(path.parent for path in Path(__file__).parent.glob("*/*/config.json"))


@pytest.mark.parametrize("folder", BASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_projection_that_takes_an_adapter_asks_for_it(folder, engine):
    """By law: no adapter is accepted for a matrix that the forward pass reads by other means."""
    runner = Runner(engine, folder)
    runner.model.adapters = Adapters(modules=(asked := Asked()))
    runner.exact(np.array([[1, 2, 3]]))
    names = runner.model.checkpoint.names
    taking = {n.removesuffix(".weight") for n in names if home(n, runner.model.checkpoint)}
    assert asked.paths - {"lm_head"} == taking - {"lm_head"} and "lm_head" in asked.paths


def home(name: str, checkpoint: Any) -> str | None:
    path = name.removesuffix(".weight")
    return None if path == name or home_of(path, checkpoint, (0, 0)) is None else path


def test_a_gguf_base(engine, judge, tmp_path):
    """By law: an adapter is laid out as Hugging Face's weights are, whatever the base's file is."""
    base = Path(__file__).parent / "gguf" / "llama_stretched.gguf"
    plain = Runner("float64", base)
    rng, path = np.random.default_rng(0), "model.layers.1.self_attn.q_proj"
    outputs, inputs = plain.model.checkpoint.stored(f"{path}.weight").shape
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((inputs, 2), (2, outputs)))
    tensors = {f"{path}.lora_a": 0.1 * a, f"{path}.lora_b": 0.1 * b}
    (tmp_path / "adapters.safetensors").write_bytes(save(tensors))
    config = {"fine_tune_type": "lora", "lora_parameters": {"rank": 2, "scale": 3.0}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokens = rng.integers(0, plain.model.config.vocab_size, (1, 8))
    before = plain.logits(tokens)
    weight = plain.model.checkpoint.tensor(f"{path}.weight")
    dense = dequantize(weight, rows=slice(None), dtype=np.dtype(np.float64))
    dense = dense + 3.0 * tensors[f"{path}.lora_b"].T @ tensors[f"{path}.lora_a"].T
    held = plain.model.checkpoint.tensor
    plain.model.checkpoint.tensor = lambda name: dense if name == f"{path}.weight" else held(name)
    merged = plain.logits(tokens)
    assert error(before, merged) > 0.01
    found = adapted(Runner(engine, base), tmp_path).logits(tokens)
    judge(engine, "adapter on a GGUF base", found, merged)
