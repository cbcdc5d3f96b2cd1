"""What is wrong on ranks and makes up nothing whole is told all the same. Each made by hand."""

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from lockstep.parity.explaining.said.diagnosis import Diagnosis, Named
from lockstep.parity.parallel import naming
from lockstep.parity.parallel.explain import explain_ranks
from lockstep.parity.parallel.faults import BUGS
from lockstep.parity.parallel.forced import failing, judged_run, moved
from lockstep.parity.parallel.naming import Tries, found_in, instead
from lockstep.parity.parallel.parts_noise import is_rounding
from lockstep.parity.parallel.ranks import fed_of, ranks_of
from lockstep.parity.parallel.shapes import shapes_of_ranks
from lockstep.reference import ops
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.parallel.rules import rule_of
from lockstep.reference.model import load as load_one
from lockstep.reference.parallel.each import Each, OpsForEach, all_sum, for_each
from lockstep.reference.parallel.model import load
from lockstep.reference.parallel.run import ParallelRun, product
from tests.parity.conftest import DEMO
from tests.parity.parallel.dumped import TOKENS, WITNESSES, dump_of, taps_of
from tests.sampled import sampled

DENSE = WITNESSES / "models/untied_float32"
Q, K, GATE, DOWN = (
    f"model.layers.0.{one}_proj" for one in ("self_attn.q", "self_attn.k", "mlp.gate", "mlp.down")
)


@cache
def right_taps(ranks=2, steps=()):
    return taps_of(load(DENSE, ranks=ranks), steps=steps)


def explained(taps, path=DENSE, **told):
    return explain_ranks(load_one(path), [dump_of(one) for one in taps], path="port", **told)


def kept(taps, names) -> list[dict[str, np.ndarray]]:
    return [{name: one[name] for name in one if re.fullmatch(names, name)} for one in taps]


def narrow(name, *ranks):
    def spoil(taps):
        for rank in ranks:
            taps[rank][name] = taps[rank][name][..., :-4]

    return spoil


def short(taps):
    taps[1][GATE] = taps[1][GATE][:, :5]


def on_one_rank_alone(taps):
    del taps[1][Q]
    taps[0][Q] = taps[0][Q] * 2


@sampled(2, "spoil-model.layers.0.self_attn.q_proj1")
@pytest.mark.parametrize(
    ("spoil", "tap"),
    [
        (narrow(Q, 1), Q),
        (narrow(Q, 0, 1), Q),
        (narrow(DOWN, 1), DOWN),
        (narrow(DOWN, 0, 1), DOWN),
        (short, GATE),
        (on_one_rank_alone, Q),
    ],
)
def test_a_wrong_tap_that_cannot_be_put_together_is_unexplained(spoil, tap):
    taps = kept(right_taps(), f"{Q}|{GATE}|{DOWN}")
    spoil(taps)
    diagnosis = explained(taps)
    assert [one.tap for one in diagnosis.unexplained] == [tap] and diagnosis.verdict == "unknown"
    assert diagnosis.compared == 3


def test_where_nothing_can_be_put_together_ranks_are_judged_alone():
    """Rank 0 has the queries alone, and rank 1 the gate."""
    alone = [{Q: right_taps()[0][Q]}, {GATE: right_taps()[1][GATE]}]
    assert explained(alone).verdict == "clean"
    alone[1][GATE] = -alone[1][GATE]
    assert [one.tap for one in explained(alone).unexplained] == [GATE]


def test_what_every_rank_has_whole_is_to_be_alike():
    """Each dumps all inner numbers; rank 1's are wrong in its own half, which rank 0's hide."""
    taps = kept(right_taps(), GATE)
    whole = np.concatenate([one[GATE] for one in taps], axis=-1)
    other = whole.copy()
    other[..., -1] += 1
    assert explained([{GATE: whole}, {GATE: whole}]).verdict == "clean"
    diagnosis = explained([{GATE: whole}, {GATE: other}])
    assert [one.tap for one in diagnosis.unexplained] == [GATE]
    assert f"the ranks do not agree on {GATE}" in diagnosis.conventions[-1]


def judged(taps, path=DENSE):
    """Judge dumps by the ranks alone, each tap from the port's own values; and try all bugs."""
    model, dumps = load(path, ranks=len(taps)), [dump_of(one) for one in taps]
    known = shapes_of_ranks(model.checkpoint, len(taps), length=len(TOKENS))
    ranks = ranks_of(dumps, known, None)
    right = judged_run(model, ranks, [TOKENS])
    return right, Tries(model, ranks, [TOKENS], right)


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 3, 2, 3), (0, 1, 2, 3)])
def test_a_file_of_another_rank_is_known(order):
    """Ranks 0 and 1 share a key head, so each one's keys are right in the other's file."""
    given = [right_taps(4)[rank] for rank in order]
    for taps in (given, kept(given, f"{Q}|{K}|{GATE}")):  # the gate's inputs are in the first alone
        told = [line.partition(":")[0] for line in moved(judged(taps)[0])]
        assert told == [f"the file of rank {rank} is of rank {other}"
                        for rank, other in enumerate(order) if rank != other]  # fmt: skip


def test_what_fits_one_other_rank_in_part_is_of_none():
    """Rank 1 has the queries of rank 2, and all else is its own."""
    taps = kept(right_taps(4), f"{Q}|{K}")
    taps[1][Q] = taps[2][Q]
    assert moved(judged(taps)[0]) == []


class MeanOfParts(ParallelRun):
    """An all-reduce that averages: no sum is missing, and no bug that is known makes it."""

    def tap(self, name, value):
        rule = rule_of(name)
        summed = rule is not None and rule.axis == "columns"
        return super().tap(name, value / len(self.ranks) if summed else value)


def test_a_mean_in_the_place_of_a_sum_is_no_missing_sum():
    wrong = load(DENSE, ranks=2).with_parts(run=MeanOfParts)
    right, tries = judged(taps_of(wrong, steps=()))
    sums = {
        f"model.layers.{n}.{one}" for n in (0, 1) for one in ("self_attn.o_proj", "mlp.down_proj")
    }
    assert failing(right.taps).keys() == sums and right.read_as == {} and right.apart == []
    assert found_in(tries) == []


class DumpsParts(ParallelRun):
    """A run that dumps the true parts of each sum, and goes on with the sum."""

    def linear(self, x, path):
        rule = rule_of(path)
        if rule is None or rule.axis == "rows":
            return super().linear(x, path)
        parts: Any = self.tap(path, for_each(product, Each(self.ranks), x, path))
        return all_sum(self.ranks[0].ops, parts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_true_parts_are_no_bug_and_their_sum_may_be_rounded_as_ranks_do(dtype):
    names = r"model\.layers\.0\.(residual|self_attn\.o_proj|input_layernorm)|model.embed_tokens"
    model = load(DENSE, ranks=4, dtype=dtype).with_parts(run=DumpsParts)
    diagnosis = explained(kept(taps_of(model, steps=()), f"{names}|.*0.self_attn.values"))
    assert diagnosis.verdict == "clean" and diagnosis.dtype == dtype
    assert "dumped before the sum of the ranks" in diagnosis.conventions[0]


def test_rounding_is_that_of_all_ranks():
    """Two ranks have what rounding makes; a third one is off by more."""
    wide = np.ones(4)
    near, far = wide + 0.01, wide + 0.05
    assert is_rounding([near, near], wide, near)
    assert not is_rounding([near, far], wide, near)


def test_steps_of_which_nobody_says_what_was_fed_are_refused():
    names = {"logits": np.ones((1, 8, 2), np.float32)}
    two, one, none = (dump_of(names, decoded=ids) for ids in ([7, 8], [7], None))
    assert fed_of([two, none], 2) == ([[7], [8]], "")
    assert fed_of([two, one], 1) == ([[7]], "")
    for dumps in ([one, one], [two, one]):
        with pytest.raises(InputError, match="says what was fed in 1 of 2 steps"):
            fed_of(dumps, 2)


@pytest.mark.parametrize("apart", [True, False])
def test_the_prompt_is_judged_where_ranks_are_apart_too(apart, monkeypatch):
    monkeypatch.setattr(naming, "BUGS", BUGS[:1])
    taps = kept(taps_of(load(DEMO, ranks=2), steps=()), r"model\.layers\.0")
    if apart:
        taps[1]["model.layers.0"] = taps[1]["model.layers.0"] + 0.5
    diagnosis = explained(taps, DEMO, prompt="hello there")
    assert next(one.tap for one in diagnosis.unexplained) == "tokens"
    assert diagnosis.stages[0] == {"stage": "tokenizer", "compared": 8, "right": False}


class ExpertsTwice(OpsForEach):
    def geglu_experts(self, *given, **told):
        right = self._sum_of(ops.geglu_experts)(*given, **told)
        return right + right


def test_of_a_norm_behind_experts_both_bugs_are_said(monkeypatch):
    """By law: a norm all but takes a factor of 2 away, and its epsilon shows what is left."""
    model = load(WITNESSES / "gemma4/sparse", ranks=2).with_parts(ops=ExpertsTwice)
    taps = kept(taps_of(model, steps=()), r"model\.layers\.[0-9]+")
    monkeypatch.setattr(naming, "BUGS", [one for one in BUGS if "experts" in one.wrong])
    right, tries = judged(taps, WITNESSES / "gemma4/sparse")
    assert failing(right.taps) == {}  # too little for what knows no model
    (named,) = instead(found := Diagnosis(faults=[said_instead([*taps[0]])]), tries)
    assert named.id == "tp-replicated-expert-summed" and named.also_fits == ["rms-eps-wrong"]
    assert named.confidence < 0.6 and found.faults == []
    other = Diagnosis(faults=[said_instead(["model.embed_tokens"])])
    assert instead(other, tries) == [] and len(other.faults) == 1


def said_instead(taps):
    """What the finer judgement of the whole says of them."""
    figures = {"confidence": 0.9, "residual_before": 1e-6, "residual_after": 1e-7, "noise": 3e-7}
    said = {"runner_up": None, "also_fits": [], "fix": "", "variant": None, "layers": []}
    return Named(id="rms-eps-wrong", taps=taps, **figures, **said)
