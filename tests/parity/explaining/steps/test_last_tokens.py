"""Passes of which a dump has the logits of the last token alone. By law: cut out of a prefill."""

import numpy as np
import pytest

from lockstep.parity.explain import explain
from tests.parity.explaining.ports import ids, model_of
from tests.parity.explaining.steps.test_steps import MISTRAL, changed, decoded
from tests.sampled import sampled


def test_logits_of_the_last_token_alone_are_enough():
    """A loop that generates needs no others of the prompt."""
    dump, _ = decoded(MISTRAL, (14, 1, 1))
    last = {name: dump.read(name)[:, -1:] for name in ("lm_head", "logits")}
    found = explain(model_of(MISTRAL), changed(dump, **last))
    assert found.verdict == "clean"
    assert found.conventions == [
        "2 taps are of the prompt's last token alone, in its pass, such as lm_head"
    ]
    wrong = {name: value * np.float32(1.5) for name, value in last.items()}
    (one, *_) = explain(model_of(MISTRAL), changed(dump, **wrong)).unexplained
    assert one.tap == "lm_head" and one.where == "in the prompt alone"


@sampled(1, "both-float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("prompt", ["both", "chunk"])
def test_so_are_those_of_a_later_chunk(prompt, dtype):
    """Its other tokens were not computed; what was is judged, and one token more is no last one."""
    dump, _ = decoded(MISTRAL, (9, 5, 1), dtype=dtype)
    short = [("lm_head", "step.1/lm_head", "logits", "step.1/logits"), ("step.1/logits",)]
    last = {name: dump.read(name)[:, -1:] for name in short[prompt == "chunk"]}
    found = explain(model_of(MISTRAL), changed(dump, **last))
    assert found.verdict == "clean" and "last token alone, in passes of" in found.conventions[0]
    wrong = last | {"step.1/logits": dump.read("step.1/logits")[:, -2:-1]}
    assert {one.tap for one in explain(model_of(MISTRAL), changed(dump, **wrong)).unexplained}
    more = last | {"step.1/logits": dump.read("step.1/logits")[:, -2:]}
    every = {
        one.tap: one.shape for one in explain(model_of(MISTRAL), changed(dump, **more)).unexplained
    }
    assert every["step.1/logits"].startswith("shape [1, 2, ")


def test_a_chunk_of_its_last_token_in_a_layer_is_none():
    dump, _ = decoded(MISTRAL, (9, 5, 1))
    tap = "step.1/model.layers.0.mlp.down_proj"
    (one, *_) = explain(
        model_of(MISTRAL), changed(dump, **{tap: dump.read(tap)[:, -1:]})
    ).unexplained
    assert one.tap == tap


@sampled(1, "logits-lengths1")
@pytest.mark.parametrize("lengths", [(14,), (14, 1, 1)])
@pytest.mark.parametrize("short", ["logits", "lm_head"])
def test_a_head_of_all_tokens_beside_the_last_one_again(short, lengths):
    """Either tap may be the short one; a wrong number in either is reported under its name."""
    dump, _ = decoded(MISTRAL, lengths)
    (whole,) = {"logits", "lm_head"} - {short}
    last = {short: dump.read(short)[:, -1:]}
    assert explain(model_of(MISTRAL), changed(dump, **last)).verdict == "clean"
    for tap in (short, whole):
        value = last.get(tap, dump.read(tap)).copy()
        value[:, 0] *= np.float32(1.5)
        found = explain(model_of(MISTRAL), changed(dump, **(last | {tap: value})))
        assert tap in {one.tap for one in found.unexplained}, tap


@pytest.mark.parametrize("bug", ["norm-plus-one-missing", "tied-head-mishandled"])
def test_a_bug_that_is_seen_at_the_last_token_alone(bug):
    """What was not computed speaks for nothing, nor against it."""
    dump, _ = decoded(MISTRAL, (14, 1, 1), [bug])
    last = {name: dump.read(name)[:, -1:] for name in ("lm_head", "logits")}
    found = explain(model_of(MISTRAL), changed(dump, **last))
    assert ids(found) == {bug.partition("[")[0]} and not found.unexplained
