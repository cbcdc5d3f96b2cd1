"""Dumps that are broken, empty or hostile: never clean, never a traceback."""

import json

import ml_dtypes
import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.said.report import report
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.explaining.ports import dumped, explained, model_of, port, prompt
from tests.sampled import sampled

NAME = "models/untied_float32"
RIGHT = port(NAME)
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@sampled(6, "model.embed_tokens-0--inf")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 77, -1])
@pytest.mark.parametrize("tap", ["model.embed_tokens", "model.layers.1.mlp.act_fn", "logits"])
def test_one_number_that_is_not_finite_is_never_clean(tap, place, value):
    taps = RIGHT | {tap: RIGHT[tap].copy()}
    taps[tap].reshape(-1)[place] = value
    found = explained(NAME, taps)
    assert found.verdict == "unknown" and tap in {one.tap for one in found.unexplained}
    (said,) = (one.shape for one in found.unexplained if one.tap == tap)
    index = [int(i) for i in np.unravel_index(place % taps[tap].size, taps[tap].shape)]
    assert said.partition(";")[0] == f"not finite, first at {index}"
    json.dumps(found.to_json(), allow_nan=False)
    assert "UNKNOWN" in report(found)


VALUES = (0, np.nan, np.inf, 3)


@sampled(1, "bfloat16-3")
@pytest.mark.parametrize(
    ("dtype", "value"),
    [*(("float32", value) for value in VALUES), ("bfloat16", 3), ("float16", np.nan)],
)
def test_a_dump_of_one_number_is_never_clean(dtype, value):
    """Some of the pairs; tests/peers has all."""
    check_never_clean(dtype, value)


def check_never_clean(dtype, value):
    taps = {tap: np.full(right.shape, value, DTYPES[dtype]) for tap, right in RIGHT.items()}
    found = explained(NAME, taps, dtype=dtype)
    assert found.verdict != "clean"
    json.dumps(found.to_json(), allow_nan=False)


def test_a_dump_in_which_nothing_can_be_compared_is_refused():
    for taps in ({"foo": np.zeros(3)}, {"logits": np.zeros((1, 2, 3))}):
        with pytest.raises(InputError, match="nothing was compared") as caught:
            explained(NAME, taps)
        assert "\n" not in str(caught.value)


def test_the_refusal_of_long_names_says_what_to_do_whole():
    taps = {"transformer.blocks.11.attention.self.output.projection": np.zeros((1, 24, 1024))}
    with pytest.raises(InputError, match="nothing was compared") as caught:
        explained(NAME, taps)
    assert "see `lockstep taps`, and --map; its first is 'transformer" in str(caught.value)
    assert str(caught.value).endswith("[1, 24, 1024])")


def test_a_dump_without_its_prompt_is_refused():
    with pytest.raises(InputError, match="pass --tokens, or put them into its metadata"):
        explain(model_of(NAME), dumped(RIGHT))
    with pytest.raises(InputError, match="JSON list of token ids"):
        explain(model_of(NAME), dumped(RIGHT, tokens="[1, 'a']"))


def test_the_prompt_may_be_handed_in():
    tokens = prompt(model_of(NAME))[0].tolist()
    assert explain(model_of(NAME), dumped(RIGHT), tokens=tokens).verdict == "clean"
    assert explain(model_of(NAME), dumped(RIGHT), tokens=tokens[::-1]).verdict != "clean"
    with pytest.raises(InputError, match=r"token id 99999, but should be 0\.\.119"):
        explain(model_of(NAME), dumped(RIGHT), tokens=[*tokens[1:], 99999])


@pytest.mark.parametrize("place", [0, 7, 19])
def test_another_prompt_than_the_dump_says_is_refused(place):
    """The dump's own was passed over without a word before."""
    tokens = prompt(model_of(NAME))[0].tolist()
    assert explain(model_of(NAME), dumped(RIGHT, NAME), tokens=tokens).verdict == "clean"
    tokens[place] += 1
    said = rf"its prompt is not that of --tokens.*from position {place} on"
    with pytest.raises(InputError, match=said):
        explain(model_of(NAME), dumped(RIGHT, NAME), tokens=tokens)
    with pytest.raises(InputError, match="from position 4 on"):
        explain(model_of(NAME), dumped(RIGHT, NAME), tokens=prompt(model_of(NAME))[0, :4].tolist())


def test_tokens_beside_a_whole_batch_are_refused():
    taps = {name: np.concatenate([value, value]) for name, value in RIGHT.items()}
    tokens = prompt(model_of(NAME))[0].tolist()
    with pytest.raises(InputError, match="leave --tokens out"):
        explain(model_of(NAME), dumped(taps, batch=f"[{tokens}, {tokens}]"), tokens=tokens)


def test_a_value_that_is_dumped_twice_must_be_right_twice():
    """`lm_head` and `logits` are one value here."""
    assert np.array_equal(RIGHT["lm_head"], RIGHT["logits"])
    found = explained(NAME, RIGHT | {"logits": RIGHT["logits"] * 2})
    assert [one.tap for one in found.unexplained] == ["logits"]
    said = "gain: 2 times the right value; lm_head is the same value"
    assert (found.verdict, found.unexplained[0].shape) == ("unknown", said)
    rounded = RIGHT["logits"] * np.float32(1 + 1e-7)
    assert explained(NAME, RIGHT | {"logits": rounded}).verdict == "clean"


def test_a_tensor_of_another_shape_is_reported_with_both_shapes():
    found = explained(NAME, RIGHT | {"model.norm": RIGHT["model.norm"][..., :5]})
    (one,) = found.unexplained
    assert (found.verdict, one.tap) == ("unknown", "model.norm")
    assert one.shape == "shape [1, 20, 5], but should be [1, 20, 48]"


@pytest.mark.parametrize("dtype", [np.int32, np.complex64, np.bool_])
def test_a_tensor_of_another_kind_is_reported_as_that(dtype):
    (one,) = explained(NAME, RIGHT | {"model.norm": RIGHT["model.norm"].astype(dtype)}).unexplained
    assert one.tap == "model.norm"
    assert one.shape == "whole or complex numbers, but should be real ones"


def test_what_is_no_tap_is_listed_and_changes_nothing():
    found = explained(NAME, RIGHT | {"zeta": np.ones(3), "alpha": np.full(2, np.nan)})
    assert found.verdict == "clean" and found.unmatched == ["alpha", "zeta"]
    assert found.to_json()["coverage"]["unmatched"] == ["alpha", "zeta"]


HOSTILE = (
    "model.\x1b[2Jnorm",
    "x\nCLEAN  port  as a port of  model",
    "y\r\x9b31m",
    "z\u202etxt.exe",
    "::error::w",
    "a" * 5000,
)


def test_nothing_in_a_name_reaches_the_terminal_as_more_than_a_name():
    taps = RIGHT | dict.fromkeys(HOSTILE, np.ones(2, np.float32))
    taps["logits"] = RIGHT["logits"] * 2
    found = explained(NAME, taps, ())
    check_harmless(report(found))


def test_nor_does_anything_in_a_path_a_config_or_a_note():
    found = explained(NAME, RIGHT)
    found.dump = found.model = "".join(HOSTILE[:5])
    found.conventions = [*HOSTILE]
    found.config = found.weights = [*HOSTILE]
    check_harmless(report(found))


def check_harmless(text):
    lines = text.splitlines()
    assert all(line.isprintable() for line in lines)
    assert sum(line.startswith(("CLEAN", "FAULTS", "UNKNOWN")) for line in lines) == 1
    assert not any(line.lstrip().startswith("::") for line in lines)
    assert "\u202e" not in text and "\x1b" not in text and "\x9b" not in text and "\r" not in text
