"""Our own engines behind the calls of the benchmark. The peers' are in tests/peers."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.parity.bench.engines import OURS, PEERS, engine_named
from lockstep.reference import load
from lockstep.reference.checkpoint.errors import InputError

PROMPT = [5, 9, 2, 40]
GGUF = Path(__file__).parents[2] / "witnesses/gguf/qwen3_tied.gguf"


@pytest.mark.parametrize("name", OURS)
def test_steps_go_on_from_the_prefill(tied, name):
    """By law: fed one by one, the tokens are those of one long forward pass; twice the same."""
    engine = engine_named(name, tied, ignore_config=())
    for _ in range(2):
        made = [engine.prefill(PROMPT)]
        made += [engine.step(made[0])]
        logits = load(tied).forward([[*PROMPT, made[0]]])[0]
        assert made == logits[-2:].argmax(axis=-1).tolist()


def test_an_unknown_engine_is_refused(tied):
    with pytest.raises(InputError, match="'vllm', but should be one of reference, mlx, cpu"):
        engine_named("vllm", tied, ignore_config=())


def test_a_peer_that_fails_says_so_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"^transformers: (cannot run|is not installed)"):
        engine_named("transformers", tmp_path, ignore_config=())


def test_a_peer_that_loads_and_cannot_compute_says_so(tied, monkeypatch):
    class Broken:
        def __init__(self, path):
            self.path = path

        def prefill(self, tokens):
            raise IndexError("no kernel")

    monkeypatch.setitem(PEERS, "mlx-lm", Broken)
    with pytest.raises(InputError, match=r"^mlx-lm: cannot run .*: 'no kernel'"):
        engine_named("mlx-lm", tied, ignore_config=())


@pytest.mark.parametrize("file", [False, True], ids=["folder", "file"])
def test_llama_cpp_that_is_not_installed(tied, file, monkeypatch):
    """Nothing is converted for it either."""
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setattr("lockstep.parity.bench.gguf_copy.write", lambda *arguments: 1 / 0)
    path = GGUF if file else tied
    with pytest.raises(InputError, match=r"^llama\.cpp: is not installed \(llama_cpp\)"):
        engine_named("llama.cpp", path, ignore_config=())


def test_llama_cpp_on_a_folder_that_has_no_copy(packed, monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace())
    core = r"^llama\.cpp: reads GGUF, and affine_mixed has no exact copy: MLX's packed weights"
    with pytest.raises(InputError, match=core):
        engine_named("llama.cpp", packed, ignore_config=())


def test_without_the_package_that_writes_the_copy(tied, monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"^llama\.cpp: is not installed \(gguf\)"):
        engine_named("llama.cpp", tied, ignore_config=())
