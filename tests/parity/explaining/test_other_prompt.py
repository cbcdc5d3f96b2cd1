"""A dump of other tokens than are said is refused by their number. By hand: ports of 20 tokens."""

import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.other_prompt import of_other_size
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.explaining.ports import dumped, model_of
from tests.parity.explaining.test_other_model import taps_of

MODELS = ("gemma4/sparse", "models/untied_float32", "gpt2/original", "qwen3_moe/fused")
NAME = "models/untied_float32"


def unknown_names(taps):
    return {f"t{number}": value for number, value in enumerate(taps.values())}


def refused(taps, tokens=None):
    """Return why a dump is refused, whose metadata says 20 tokens unless others are told."""
    dump = dumped(taps, NAME if tokens is None else None)
    with pytest.raises(InputError, match="nothing was compared") as caught:
        explain(model_of(NAME), dump, tokens=tokens, faults=())
    return str(caught.value)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("said", "found"), [(19, (1, 20)), (21, (1, 20)), (20, None)])
def test_the_number_of_tokens_is_known_by_the_shapes(name, said, found):
    shapes = dumped(taps_of(name), name).shapes
    assert of_other_size(shapes, model_of(name).checkpoint, said) == found


@pytest.mark.parametrize("rename", [dict, unknown_names], ids=["taps", "unknown names"])
def test_a_token_less_is_told(rename):
    said = refused(rename(taps_of(NAME)), tokens=[*range(19)])
    assert "its tensors are of 20 tokens, but the prompt of 19 (say every id" in said


def test_without_a_batch_axis_too():
    taps = {tap: value[0] for tap, value in taps_of(NAME).items()}
    assert "of 20 tokens, but the prompt of 3" in refused(taps, tokens=[1, 2, 3])


def test_a_batch_of_two_is_told():
    taps = {tap: np.concatenate([value, value]) for tap, value in taps_of(NAME).items()}
    assert "its tensors are of 2 prompts of 20 tokens, but one of 20 is known" in refused(taps)


def test_names_alone_are_to_blame_where_the_length_is_right():
    assert "no tensor has the name and the shape of a tap" in refused(unknown_names(taps_of(NAME)))


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint64", "complex64"])
def test_numbers_that_are_not_real_are_told_with_their_tensor(dtype):
    logits = taps_of(NAME)["logits"].astype(dtype)
    kind = f"its numbers are {dtype}, but should be float64, float32, float16 or bfloat16 (logits)"
    assert kind in refused({"logits": logits})
    assert kind in refused({"foo": logits, "logits": logits})
    assert "no tensor has the name and the shape of a tap" in refused({"logits": logits[..., :7]})


def test_logits_of_the_last_token_alone_are_of_no_other_prompt():
    """By hand: under names that are no tap's, as `--map` may give them one."""
    last = taps_of(NAME)["logits"][0, -1:]
    said = refused({"foo": last, "bar": last})
    assert "no tensor has the name and the shape of a tap" in said


def test_of_shapes_of_another_model_nothing_is_claimed():
    """By hand: widths of 7 are those of no tap, whatever the number of tokens."""
    taps = {f"t{number}": np.zeros((1, 20, 7), np.float32) for number in range(5)}
    assert "no tensor has the name" in refused(taps, tokens=[1, 2, 3])


def test_features_before_tokens_are_told():
    taps = {tap: value for tap, value in taps_of(NAME).items() if value.ndim == 3}
    said = refused({tap: np.swapaxes(value, -1, -2) for tap, value in taps.items()})
    assert "have their features before their tokens, (B, D, L) (write them as (B, L, D))" in said
