"""GPT-2 against what transformers computed in float32. By witness: tests/witnesses/make_gpt2.py."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from lockstep.reference.checkpoint.errors import InputError
from tests.witnesses import whole_models
from tests.witnesses.runners import ENGINES, Runner, redeclared

FOLDER = Path(__file__).parents[2] / "witnesses" / "gpt2"
MATRICES = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
ENGINES_AND_FLOAT64 = ("float64", *ENGINES)


@pytest.fixture(params=sorted(path.name for path in FOLDER.iterdir()))
def folder(request) -> Path:
    return FOLDER / request.param


@pytest.fixture(params=ENGINES)
def engine(request) -> str:
    return request.param


@pytest.mark.parametrize("engine", ENGINES_AND_FLOAT64)
def test_logits(folder, engine, judge):
    whole_models.check_logits(folder, engine, judge)


@pytest.mark.parametrize("engine", ENGINES_AND_FLOAT64)
def test_every_module_gives_what_its_hook_saw(folder, engine, judge):
    whole_models.check_modules(folder, engine, judge)


def test_cached_chunks_equal_the_prefill(folder, engine, judge):
    whole_models.check_cached(folder, engine, judge)


def test_greedy_continuation(folder, engine):
    whole_models.check_greedy(folder, engine)


def test_prompts_of_unequal_length_go_on_as_if_alone(folder, engine, judge):
    whole_models.check_unequal(folder, engine, judge)


def test_trace_changes_no_bit(folder, engine):
    whole_models.check_trace(folder, engine)


def test_the_two_gelus_are_two_models(engine, judge, tmp_path):
    """By law: the names of one function give one result to the bit, the exact one another."""
    original, tokens = FOLDER / "original", np.arange(30)[None]
    found = {}
    for name in ("gelu_new", "gelu_pytorch_tanh", "gelu"):
        target = tmp_path / name
        redeclared(
            original, target, lambda config, name=name: config.update(activation_function=name)
        )
        found[name] = Runner(engine, target).logits(tokens)
    assert found["gelu_new"].tobytes() == found["gelu_pytorch_tanh"].tobytes()
    apart = np.abs(found["gelu_new"] - found["gelu"]).max() / found["gelu"].std()
    assert 1e-4 < apart < 1e-1


def test_a_position_without_an_embedding_is_refused(engine):
    """By law: 64 positions are 0..63, and a step that is refused leaves the cache as it was."""
    runner = Runner(engine, FOLDER / "original")
    line = r"original: position 64, but the model has positions 0\.\.63 \(row 0, token 64\)$"
    with pytest.raises(InputError, match=line):
        runner.exact(np.zeros((1, 65), int))
    with pytest.raises(InputError, match=r"position 70, .* \(row 1, token 0\)$"):
        runner.exact(np.zeros((2, 1), int), positions=np.array([[3], [70]]))
    cache = runner.model.make_cache()
    whole = runner.exact(np.arange(64)[None], cache=cache)
    with pytest.raises(InputError, match="position 64, but"):
        runner.exact([[1]], cache=cache)
    assert cache.positions.length == 64
    assert whole.shape == (1, 64, 120)


def test_padding_may_stand_beyond_the_last_position(engine, judge):
    """By law: a row that is full does not forbid its neighbour's padding."""
    runner, tokens = Runner(engine, FOLDER / "original"), np.arange(64)[None]
    cache = runner.model.make_cache()
    runner.exact(np.repeat(tokens[:, :60], 2, axis=0), cache=cache, lengths=[50, 60])
    step = np.stack([tokens[0, 50:60], np.pad(tokens[0, 60:], (0, 6))])
    found = runner.logits(step, cache=cache, lengths=[10, 4])
    expected = runner.logits(tokens)
    judge(engine, "padding at the end", found[0], expected[0, 50:60])
    judge(engine, "padding at the end", found[1, :4], expected[0, 60:])


def test_what_a_file_says_of_its_matrices_is_not_believed(engine, tmp_path):
    """By law: the shape of `c_attn` decides, not the `format` that a file declares."""
    from safetensors.numpy import load_file, save_file

    target = tmp_path / "model"
    shutil.copytree(FOLDER / "original", target)
    tensors = load_file(target / "model.safetensors")
    before = Runner(engine, target).exact([[1, 2, 3]])
    save_file(tensors, target / "model.safetensors", metadata={"format": "mlx"})
    assert Runner(engine, target).exact([[1, 2, 3]]).tobytes() == before.tobytes()
    turned = {
        name: np.ascontiguousarray(value.T) if name.endswith(MATRICES) else value
        for name, value in tensors.items()
    }
    save_file(turned, target / "model.safetensors")
    after = Runner(engine, target).exact([[1, 2, 3]])
    assert np.abs(after - before).max() < 1e-5 * before.std()
