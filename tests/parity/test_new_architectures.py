"""Commands on an architecture that Lockstep does not have, where torch need not be. By hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lockstep import parity
from lockstep.parity.diffing.one_prompt import sensible
from lockstep.parity.torch_modules import folder as folders
from lockstep.parity.torch_modules.folder import checked_folder, has_reference
from lockstep.parity.torch_modules.survey import Survey
from lockstep.reference.checkpoint.errors import InputError

CONFIG = {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "vocab_size": 8}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def olmo2(tmp_path) -> Path:
    """A folder that is sound as far as one can see without running it."""
    path = tmp_path / "olmo2"
    path.mkdir()
    return written(path, CONFIG)


@pytest.fixture
def dump(tmp_path) -> Path:
    path = tmp_path / "dump.safetensors"
    about = {"format": "lockstep-trace", "version": "1", "tokens": "[1, 2]", "dtype": "float32"}
    save_file({"logits": np.ones((1, 2, 8), np.float32)}, path, metadata=about)
    return path


@pytest.fixture
def with_torch(monkeypatch) -> None:
    monkeypatch.setattr(folders, "has_transformers", lambda: True)


def written(path: Path, config: object) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": np.ones(8, np.float32)}, path / "model.safetensors")
    return path


def test_it_has_no_reference(olmo2, plain):
    assert not has_reference(olmo2)
    assert has_reference(plain)


def test_a_config_that_says_no_architecture_is_left_to_the_reference_to_refuse(olmo2, refuses):
    written(olmo2, CONFIG | {"model_type": 3})
    assert has_reference(olmo2)
    refuses("model_type", "inspect", olmo2)


def test_without_transformers_one_line_tells_what_to_install(olmo2, dump, refuses, monkeypatch):
    monkeypatch.setattr(folders, "has_transformers", lambda: False)
    for arguments in (
        ("diff", dump, dump, "--model", olmo2),
        ("trace", olmo2, "--tokens", "1", "--backend", "transformers", "-o", dump.parent / "out"),
    ):
        line = refuses("pip install 'lockstep-parity[transformers]'", *arguments)
        assert "olmo2" in line
    with pytest.raises(InputError, match="lockstep-parity"):
        parity.diff(dump, dump, model=olmo2)


def test_commands_that_need_a_reference_say_what_there_is_instead(olmo2, dump, refuses):
    page = "docs/parity/new-architecture.md"
    line = refuses("no reference file for 'olmo2'", "explain", olmo2, dump)
    assert "diff LEFT DUMP --model" in line and page in line
    line = refuses("no reference file for 'olmo2'", "trace", olmo2, "--tokens", "1", "-o", "out")
    assert "--backend transformers" in line and page in line
    line = refuses("no reference file for 'olmo2'",
                   "diff", dump, dump, "--model", olmo2, "--backend", "reference")  # fmt: skip
    assert page in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantization": {"bits": 4, "group_size": 64}}, "quantization: packed weights"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: packed weights"),
        ({"text_config": {"quantization_config": {"bits": 8}}}, "packed weights"),
        ({"transformers_weights": "other.bin"}, "names a file of weights of its own"),
    ],
)
def test_configs_that_lead_elsewhere_are_refused(olmo2, dump, refuses, with_torch, change, said):
    written(olmo2, CONFIG | change)
    refuses(said, "diff", dump, dump, "--model", olmo2)


def test_an_adapter_in_the_folder_is_refused(olmo2, dump, refuses, with_torch):
    (olmo2 / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    refuses("holds an adapter", "diff", dump, dump, "--model", olmo2)


def test_pickles_are_no_weights(olmo2, dump, refuses, with_torch):
    (olmo2 / "model.safetensors").rename(olmo2 / "pytorch_model.bin")
    refuses("pytorch_model.bin", "diff", dump, dump, "--model", olmo2)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json"])
def test_links_that_lead_out_are_refused(olmo2, dump, refuses, with_torch, name, tmp_path):
    outside = tmp_path / "outside"
    inside = olmo2 / name
    if inside.exists():
        inside.rename(outside)
    else:
        outside.write_text("{}")
    inside.symlink_to(outside)
    refuses("leads out of the model's folder", "diff", dump, dump, "--model", olmo2)


def test_a_broken_safetensors_file_is_refused_by_our_reader(olmo2, dump, refuses, with_torch):
    (olmo2 / "model.safetensors").write_bytes(b"\xff" * 64)
    refuses("model.safetensors", "diff", dump, dump, "--model", olmo2)


def test_what_goes_with_what(olmo2, dump, refuses, with_torch, tmp_path):
    refuses("goes with --model", "diff", dump, dump, "--backend", "transformers")
    refuses("--adapter", "diff", dump, dump, "--model", olmo2, "--adapter", tmp_path)
    refuses("--adapter", "trace", olmo2, "--tokens", "1", "--backend", "transformers",
            "--adapter", olmo2, "-o", tmp_path / "out")  # fmt: skip
    refuses("GGUF", "diff", dump, dump, "--backend", "transformers",
            "--model", Path(__file__).parents[1] / "witnesses/gguf/qwen3_tied.gguf")  # fmt: skip


def test_a_tap_is_fed_by_the_nearest_that_were_dumped():
    """By hand: a projection that was not dumped is walked through, one that was is not."""
    found = Survey(
        shapes=dict.fromkeys(["x", "norm", "q", "k", "out"], (1, 2, 8)),
        sources={"norm": ("x",), "q": ("norm",), "k": ("norm",), "out": ("q", "k", "x")},
    )
    assert found.nearest("out", {"x", "q", "out"}) == ["x", "q"]
    assert found.nearest("out", {"norm", "out"}) == ["norm"]
    assert found.nearest("out", {"x", "norm", "q", "k"}) == ["x", "q", "k"]
    assert found.nearest("x", {"x"}) == []


def test_a_way_that_is_no_rounding_makes_no_noise():
    """By hand: a kernel that leaves a cap out is a thousand times as far off as the first way."""
    right = np.linspace(-1, 1, 16)[None]
    near, other, far = right + 1e-7, right - 3e-7, right + 1e-4
    spread = sensible((near, other, far), right)
    assert [one is way for one, way in zip(spread, (near, other), strict=True)] == [True, True]


def test_a_sound_folder_is_taken(olmo2, with_torch):
    assert checked_folder(olmo2) == olmo2
