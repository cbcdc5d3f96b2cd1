"""Llama, Mistral and Qwen2 against transformers. By witness: tests/witnesses/make_llama.py."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.witnesses import whole_models
from tests.witnesses.runners import ENGINES, Runner, redeclared

FOLDER = Path(__file__).parents[2] / "witnesses" / "llama"
NAMES = sorted(path.name for path in FOLDER.iterdir())
# Their frequencies follow the length of the text: a longer text is another function of its start.
BY_LENGTH = ("llama_dynamic", "llama_longrope")
STEADY = [name for name in NAMES if name not in BY_LENGTH]
ORIGINAL = 16  # tokens that these two were made for
ENGINES_AND_FLOAT64 = ("float64", *ENGINES)


@pytest.fixture(params=NAMES)
def folder(request) -> Path:
    return FOLDER / request.param


@pytest.fixture(params=STEADY)
def steady(request) -> Path:
    return FOLDER / request.param


@pytest.fixture(params=BY_LENGTH)
def by_length(request) -> Path:
    return FOLDER / request.param


@pytest.fixture(params=ENGINES)
def engine(request) -> str:
    return request.param


@pytest.mark.parametrize("engine", ENGINES_AND_FLOAT64)
def test_logits(folder, engine, judge):
    whole_models.check_logits(folder, engine, judge)


@pytest.mark.parametrize("engine", ENGINES_AND_FLOAT64)
def test_every_module_gives_what_its_hook_saw(folder, engine, judge):
    whole_models.check_modules(folder, engine, judge, hidden=("mlp.act_fn",))


def test_cached_chunks_equal_the_prefill(steady, engine, judge):
    whole_models.check_cached(steady, engine, judge)


def test_greedy_continuation(folder, engine):
    whole_models.check_greedy(folder, engine)


def test_prompts_of_unequal_length_go_on_as_if_alone(steady, engine, judge):
    whole_models.check_unequal(steady, engine, judge)


def test_trace_changes_no_bit(folder, engine):
    whole_models.check_trace(folder, engine)


def test_each_row_is_stretched_by_its_own_length(by_length, engine, judge):
    """By witness: a short prompt beside a long one gives what it gives alone."""
    expected, runner = whole_models.expected_of(by_length), Runner(engine, by_length)
    tokens, lengths = expected["tokens"], expected["unequal_lengths"]
    padded = runner.logits(tokens, lengths=lengths)
    judge(engine, "padded prompts", padded[0], expected["logits"][0])
    judge(engine, "padded prompts", padded[1, : lengths[1]], expected["short_logits"][0])
    ids, seen = runner.greedy(tokens, expected["unequal_greedy"].shape[1], lengths=lengths)
    np.testing.assert_array_equal(ids, expected["unequal_greedy"])
    kept = seen[:, expected["unequal_steps"]]
    judge(engine, "unequal prompts", kept, expected["unequal_logits"])


def test_a_cache_changes_nothing_up_to_the_original_length(by_length, engine, judge):
    """By law: there the frequencies stand still."""
    runner = Runner(engine, by_length)
    tokens = whole_models.expected_of(by_length)["tokens"][:, :ORIGINAL]
    judge(engine, "cached", runner.chunked(tokens, [1, 9, 6]), runner.logits(tokens))


def test_beyond_it_cached_keys_keep_their_frequencies(by_length, engine, judge):
    """By law: one step from 16 tokens turns its own key alone, so it is not the prefill of 17."""
    runner = Runner(engine, by_length)
    tokens = whole_models.expected_of(by_length)["tokens"][:, : ORIGINAL + 1]
    stepped = runner.chunked(tokens, [ORIGINAL, 1])
    judge(engine, "cached", stepped[:, :-1], runner.logits(tokens[:, :-1]))
    whole = runner.logits(tokens)
    assert np.abs(stepped[:, -1] - whole[:, -1]).max() > 1e-3 * whole.std()


def test_every_layer_of_a_mistral_has_the_window(engine, judge, tmp_path):
    """By law: `layer_types`, where given, decides instead; listing every layer changes no bit."""
    folder = FOLDER / "mistral_window"
    tokens = whole_models.expected_of(folder)["tokens"]
    found = {}
    for name, kinds in {
        "absent": None,
        "listed": ["sliding_attention"] * 2,
        "one": ["full_attention", "sliding_attention"],
    }.items():
        target = tmp_path / name
        redeclared(folder, target, lambda config, kinds=kinds: config.update(layer_types=kinds))
        found[name] = Runner(engine, target).exact(tokens)
    assert found["absent"].tobytes() == found["listed"].tobytes()
    assert np.abs(found["one"] - found["absent"]).max() > 1e-2 * found["one"].std()


def test_both_spellings_are_one_model(engine, tmp_path):
    """By law: `rope_parameters`, or `rope_theta` with `rope_scaling`, give the same bits."""
    folder = FOLDER / "biased_llama3"
    tokens = whole_models.expected_of(folder)["tokens"]

    def respell(config):
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}

    other = redeclared(folder, tmp_path / "other", respell)
    assert "rope_parameters" not in json.loads((other / "config.json").read_text("utf-8"))
    same = Runner(engine, other).exact(tokens).tobytes()
    assert same == Runner(engine, folder).exact(tokens).tobytes()
