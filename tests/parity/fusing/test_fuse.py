"""A fused model is the base with its adapter. By law, on witnesses of mlx-lm and PEFT."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep import fast, reference
from lockstep.parity import model_files
from lockstep.parity.fusing import folder as fusing
from lockstep.parity.fusing.folder import fuse
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.checkpoint.sharded import Shards
from lockstep.reference.model import Model
from lockstep.reference.ops import dequantize

ROOT = Path(__file__).parents[3]
ADAPTERS = ROOT / "tests/witnesses/adapters"
NAMES = sorted(path.name for path in ADAPTERS.iterdir())
BACKENDS = ("reference", "mlx", "cpu")
TOKENS = np.array([[3, 1, 4, 1, 5, 9, 2, 6]])
# Greatest difference over the standard deviation. Float32 rounds alike; a weight that is stored
# shorter has 8 bits (bfloat16) or 11 (float16), and the errors of many weights add up.
BARS = {"F32": 2e-5, "F16": 5e-3, "BF16": 4e-2}
# Half a unit in the last place, in parts of the value, and what float32's own sum may add.
HALF_UNITS = {"F32": 0.0, "F16": 2**-11, "BF16": 2**-8}


def pair(name: str) -> tuple[Path, Path]:
    """Return an adapter and its base."""
    with np.load(ADAPTERS / name / "expected.npz") as kept:
        return ADAPTERS / name, ROOT / str(kept["base"])


def logits(backend: str, *folders: Path) -> np.ndarray:
    if backend == "reference":
        return np.asarray(reference.load(*folders).forward(TOKENS))
    return np.asarray(fast.load(*folders, backend=backend).forward(TOKENS))


def error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / expected.std())


def tensors(folder: Path) -> dict[str, bytes]:
    shards = Shards(folder)
    return {name: shards.read(name).tobytes() for name in shards.names}


@pytest.mark.parametrize("name", NAMES)
def test_a_fused_model_is_the_base_with_its_adapter(name, tmp_path):
    adapter, base = pair(name)
    made = fuse(base, adapter, tmp_path / "fused")
    weights = Shards(tmp_path / "fused")
    dtypes = {weights.entry(name).dtype for name in stored_names(base, made)}
    bar, plain = max(BARS[dtype] for dtype in dtypes), logits("reference", base)
    for backend in BACKENDS:
        tuned = logits(backend, base, adapter)
        found = logits(backend, tmp_path / "fused")
        assert error(found, tuned) < bar, (backend, dtypes)
        assert error(plain, tuned) > 3 * bar


@pytest.mark.parametrize("name", NAMES)
def test_each_weight_is_the_formula_rounded_once(name, tmp_path):
    """By the formulas of LoRA and DoRA in float64, written anew."""
    adapter, base = pair(name)
    tuned = reference.load(base, adapter)
    fuse(base, adapter, tmp_path / "fused")
    fused = open_checkpoint(tmp_path / "fused")
    for path, one in tuned.adapters.modules.items():
        weight = dense(tuned, f"{path}.weight")
        b, a = one.b.astype(np.float64), one.a.astype(np.float64)
        expected = weight.astype(np.float64) + one.scale * (b @ a)
        if one.magnitude is not None:
            expected *= (one.magnitude / np.linalg.norm(expected, axis=1))[:, None]
        found = fused.tensor(f"{path}.weight").astype(np.float64)
        half = HALF_UNITS[fused.stored(f"{path}.weight").dtype]
        allowed = half * np.abs(expected) + 4e-6 * expected.std()
        assert (np.abs(found - expected) <= allowed).all(), path


def dense(model: Model, name: str) -> np.ndarray:
    """Return a weight of the base, or what the adapter has in its place; stacks one by one."""
    if name in model.adapters.weights:
        return model.adapters.weights[name]
    shape = model.checkpoint.stored(name).shape
    if len(shape) == 3:
        stack = model.checkpoint.stack(name)
        return np.stack([unpacked(stack[expert]) for expert in range(shape[0])])
    return unpacked(model.checkpoint.tensor(name))


def unpacked(weight: np.ndarray | QuantizedTensor) -> np.ndarray:
    if isinstance(weight, np.ndarray):
        return weight
    return dequantize(weight, rows=slice(None), dtype=np.dtype(np.float32))


def stored_names(base: Path, made: dict) -> set[str]:
    """Return the tensors that changed as the files spell them, and a head that is now apart."""
    checkpoint = open_checkpoint(base)
    names = [f"{path}.weight" for path in made["fused"]]
    found = {one for n in names if checkpoint.has(n) for one in checkpoint.source(n).names}
    return found | ({"lm_head.weight"} if made["untied"] else set())


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_is_touched(name, tmp_path):
    adapter, base = pair(name)
    made = fuse(base, adapter, tmp_path / "fused")
    before, after = tensors(base), tensors(tmp_path / "fused")
    changed = stored_names(base, made)
    gone = {f"{path}.{kind}" for path in made["unpacked"] for kind in ("scales", "biases")}
    assert before.keys() - after.keys() == gone & before.keys()
    assert {key for key in after if after[key] != before.get(key)} == changed
    for file in base.iterdir():
        if file.suffix == ".safetensors" or file.name.endswith(".index.json"):
            continue
        copied = tmp_path / "fused" / file.name
        if file.name in ("config.json", *model_files.COPIED):
            same = copied.read_bytes() == file.read_bytes()
            assert same or (file.name == "config.json" and (made["unpacked"] or made["untied"]))
        else:
            assert not copied.exists()


def test_a_packed_module_is_declared_plain_and_the_others_stay_packed(tmp_path):
    adapter, base = pair("peft_packed")
    made = fuse(base, adapter, tmp_path / "fused")
    assert made["unpacked"]
    config = json.loads((tmp_path / "fused/config.json").read_text())
    before = json.loads((base / "config.json").read_text())
    for key in fusing.SECTIONS:
        for module, said in config.pop(key, {}).items():
            assert said == (False if module in made["unpacked"] else before[key][module])
        before.pop(key, None)
    assert config == before
    assert reference.load(tmp_path / "fused").checkpoint.warnings == []


def test_another_spelling_of_a_module_is_declared_plain_too(tmp_path):
    """By hand: a converter listed the modules of a wrapped model under another prefix."""
    path = tmp_path / "config.json"
    listed = {"language_model.model.a": {"bits": 4}, "model.b": {"bits": 8}, "bits": 4}
    path.write_text(json.dumps({"quantization": listed, "quantization_config": None}))
    found = fusing.config_without(path, ["model.a"])["quantization"]
    assert found == listed | {"language_model.model.a": False, "model.a": False}


@pytest.mark.parametrize("name", ["peft_patterns", "peft_rslora", "peft_gpt2", "peft_packed"])
def test_an_update_of_zero_leaves_every_byte(name, tmp_path):
    adapter, base = pair(name)
    copy = Path(shutil.copytree(adapter, tmp_path / "adapter"))
    file = copy / "adapter_model.safetensors"
    held = load_file(file)
    save_file({k: 0 * v if "lora_B" in k else v for k, v in held.items()}, file)
    made = fuse(base, copy, tmp_path / "fused")
    assert made["fused"] == made["unpacked"] == [] and made["without_effect"]
    assert tensors(tmp_path / "fused") == tensors(base)
    assert (tmp_path / "fused/config.json").read_bytes() == (base / "config.json").read_bytes()


def test_the_command_says_what_it_did(lockstep, tmp_path):
    adapter, base = pair("mlx_trained")
    (tmp_path / "fused").mkdir()  # an empty one may be there
    said = lockstep("fuse", base, adapter, tmp_path / "fused")
    assert (said.code, said.err) == (0, ""), said
    assert "of them were packed and are dense now" in said.out
    assert [path.name for path in tmp_path.iterdir()] == ["fused"]
    said = lockstep("fuse", base, adapter, tmp_path / "again", "--json", "-")
    assert json.loads(said.out)["target"] == str(tmp_path / "again")
    prompt = ("--prompt", "What is 2+2?", "--chat", "--max-tokens", "3", "--json", "-")
    assert lockstep("generate", tmp_path / "fused", *prompt).code == 0
    both = [tmp_path / one / "model.safetensors" for one in ("fused", "again")]
    assert both[0].read_bytes() == both[1].read_bytes()


def test_targets_that_would_do_harm(refuses, tmp_path):
    adapter, base = pair("peft_rslora")
    base = Path(shutil.copytree(base, tmp_path / "base"))
    adapter = Path(shutil.copytree(adapter, tmp_path / "adapter"))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for core, target in {
        "is not empty": tmp_path / "full",
        "exists and is no folder": tmp_path / "file",
        "is a link": tmp_path / "link",
        "is not there": tmp_path / "missing/fused",
        "lies in the folder that is read": base / "fused",
        "in the folder that is read, ": adapter / "fused",
        "is no name of a folder": "",
        "is no name of a folder to": "a\0b",
        "error": "m\udcff" * 200,
        "cannot be made": tmp_path / ("x" * 300),
    }.items():
        refuses(core, "fuse", base, adapter, target)
    json_file = tmp_path / "empty" / "made.json"
    refuses("lies in the folder that is made", "fuse", base, adapter, tmp_path / "empty",
            "--json", json_file)  # fmt: skip
    refuses("lies in the folder", "fuse", base, adapter, tmp_path / "new",
            "--json", adapter / "adapter_config.json")  # fmt: skip
    assert sorted(tmp_path.rglob("*")) == before


def test_bases_and_adapters_that_cannot_be_fused(refuses, tmp_path):
    adapter, base = pair("peft_rslora")
    gguf = ROOT / "tests/witnesses/gguf/qwen3_tied.gguf"
    refuses("is a GGUF file: folders of safetensors", "fuse", gguf, adapter, tmp_path / "fused")
    refuses("changes no weights", "fuse", base, ADAPTERS / "peft_gpt2", tmp_path / "fused")
    refuses("no such folder", "fuse", base, tmp_path / "none", tmp_path / "fused")
    refuses("required: TARGET", "fuse", base, adapter)
    assert list(tmp_path.iterdir()) == []


def test_a_sum_that_does_not_fit_is_refused_and_nothing_is_left(refuses, tmp_path):
    """By hand: float16 ends at 65504."""
    adapter, base = pair("peft_dora")
    copy = Path(shutil.copytree(adapter, tmp_path / "adapter"))
    file = copy / "adapter_model.safetensors"
    held = load_file(file)
    grown = {k: 1e8 * v if "magnitude" in k else v for k, v in held.items()}
    save_file(grown, file)
    refuses("cannot be fused: the sum does not fit float16", "fuse", base, copy, tmp_path / "fused")
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_while_writing_leaves_nothing(error, lockstep, tmp_path, monkeypatch):
    adapter, base = pair("peft_rslora")

    def fails(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("lockstep.parity.fusing.tensors.fused_weight", fails)
    said = lockstep("fuse", base, adapter, tmp_path / "fused")
    assert said.code in (2, 130) and len(said.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
