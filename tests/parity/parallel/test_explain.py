"""`explain` of what each rank of a port dumped. By law where nothing is wrong.

Bugs of ranks that are planted here are those that tests/parity/parallel/wrong_ranks.py has not:
they are made by hand, of whole matrices, and of operations that count too often.
"""

import re

import numpy as np
import pytest

from lockstep.parity.faults.left_out import DEVICES, LEFT_OUT
from lockstep.parity.parallel.explain import explain_ranks
from lockstep.parity.parallel.faults import BUGS
from lockstep.reference import ops
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint
from lockstep.reference.model import load as load_one
from lockstep.reference.parallel.each import OpsForEach, for_each
from lockstep.reference.parallel.model import load
from tests.parity.parallel.dumped import TOKENS, WITNESSES, dump_of, taps_of
from tests.sampled import sampled

long = sampled(1)  # of the proofs below that take seconds each

DENSE = "models/untied_float32"


def explained(name, taps, **told):
    dumps = [dump_of(one, **told.pop("about", {})) for one in taps]
    return explain_ranks(load_one(WITNESSES / name), dumps, path="port", **told)


def found(diagnosis) -> list[str]:
    return [one.id for one in diagnosis.faults]


@sampled(1, "qwen3_moe/packed-2")
@pytest.mark.parametrize(
    ("name", "ranks"),
    [(DENSE, 4), ("gpt2/original", 3), ("gemma4/sparse", 2), ("qwen3_moe/packed", 2)],
)
def test_right_ranks_are_clean(name, ranks):
    taps = taps_of(load(WITNESSES / name, ranks=ranks))
    diagnosis = explained(name, taps)
    assert diagnosis.verdict == "clean" and diagnosis.compared == len(taps[0])
    assert diagnosis.steps == 1 and diagnosis.unmatched == []


def bare(taps, rank):
    """Name taps as mlx-lm does, without a batch axis, and heads behind tokens."""
    made = {}
    for name, value in taps.items():
        value = value[0]
        if name.endswith(("q_rope", "k_rope")):
            value = np.swapaxes(value, 0, 1)
        made[f"model.{name}" if name.startswith("model.layers") else name] = value
    return made


def before_the_sum(taps, rank):
    """Dump a random part of what is summed; the other rank has the rest. Words stay cut."""
    rng, made = np.random.default_rng(5), dict(taps)
    for name, value in taps.items():
        part = value * rng.random(value.shape, np.float32)
        if name.endswith(("o_proj", "down_proj", "embed_tokens")):
            made[name] = value - part if rank else part
        if name.endswith("lm_head"):  # a table of 130 rows, of which the last 10 are filled up
            wide = np.concatenate([value, np.ones_like(value)[..., :10]], axis=-1)
            made[name] = np.split(wide, 2, axis=-1)[rank]
    return made


def rank_0_alone(taps, rank):
    """Let rank 0 alone have the logits, as engines do that gather them there."""
    return {name: one for name, one in taps.items() if not rank or name[0] != "l"}


WAYS = {
    bare: "names mapped to taps",
    before_the_sum: "dumped before the sum of the ranks, in 10 taps",
    rank_0_alone: "",
}


@long
@pytest.mark.parametrize("way", WAYS)
def test_ways_of_dumping_are_no_bugs(way):
    """By hand: the same right values, dumped at another point or in another shape."""
    taps = taps_of(load(WITNESSES / DENSE, ranks=2))
    diagnosis = explained(DENSE, [way(one, rank) for rank, one in enumerate(taps)])
    assert diagnosis.verdict == "clean" and diagnosis.compared == len(taps[0])
    assert WAYS[way] in "; ".join(diagnosis.conventions)


def test_what_is_not_dealt_out_is_taken_apart():
    """By hand: every rank dumps the keys of all ranks, and of an MLP all inner numbers."""
    taps = taps_of(load(WITNESSES / DENSE, ranks=4))
    whole = {}
    for name in taps[0]:
        if name.endswith("k_proj"):  # ranks 0 and 1 have one head, 2 and 3 the other
            whole[name] = np.concatenate([taps[0][name], taps[2][name]], axis=-1)
        if name.endswith(("gate_proj", "up_proj", "act_fn")):
            whole[name] = np.concatenate([one[name] for one in taps], axis=-1)
    diagnosis = explained(DENSE, [one | whole for one in taps])
    assert diagnosis.verdict == "clean"
    assert "every rank has all of it, in 16 taps" in "; ".join(diagnosis.conventions)


def test_of_a_fused_matrix_its_three_parts_are_taken_apart():
    taps = taps_of(load(WITNESSES / "gpt2/original", ranks=3))
    whole = {}
    for name in taps[0]:
        if name.endswith("c_attn"):
            each = [np.split(one[name], 3, axis=-1) for one in taps]
            whole[name] = np.concatenate([one[part] for part in range(3) for one in each], axis=-1)
    diagnosis = explained("gpt2/original", [one | whole for one in taps])
    assert diagnosis.verdict == "clean" and len(whole) == 4


def test_what_is_looked_for_is_what_the_catalogue_says():
    """The family is left out of those that are planted in one model; bugs of ranks are here."""
    said = {id for id, why in LEFT_OUT["distributed"].items() if why == DEVICES}
    assert said == {bug.id for bug in BUGS} and len(said) == 7


class QkvAsOne(RankCheckpoint):
    """A rank's part of [Q; K; V] is one piece of it. By hand, of the whole matrices."""

    def tensor(self, name):
        home, _, kind = name.partition("self_attn.")
        modules = [f"{one}_proj.weight" for one in "qkv"]
        if kind not in modules:
            return super().tensor(name)
        parts = [np.asarray(self.whole.tensor(f"{home}self_attn.{one}")) for one in modules]
        mine = np.split(np.concatenate(parts), self.ranks)[self.rank]
        ends = np.cumsum([len(one) // self.ranks for one in parts])[:-1]
        return np.split(mine, ends)[modules.index(kind)]


class ExpertsTooOften(OpsForEach):
    def experts(self, *given, **told):
        right = self._sum_of(ops.experts)(*given, **told)
        return right + right


PLANTED = {
    "tp-fused-shard-contiguous": (DENSE, {"checkpoint": QkvAsOne}, "self_attn.q_proj"),
    "tp-replicated-expert-summed": ("qwen3_moe/fused", {"ops": ExpertsTooOften}, "mlp.experts"),
}


@long
@pytest.mark.parametrize("bug", PLANTED)
def test_bugs_of_ranks_are_named(bug):
    name, wrong, first = PLANTED[bug]
    model = load(WITNESSES / name, ranks=2)
    diagnosis = explained(name, taps_of(model.with_parts(**wrong)))
    (named,) = diagnosis.faults
    assert named.id == bug and named.taps[0].endswith(first) and named.confidence > 0.9
    assert diagnosis.unexplained == [] and named.residual_before > 100 * named.noise
    assert named.residual_after <= named.noise


@pytest.mark.parametrize("names", [r"model\.layers\.[0-9]", "logits"])
def test_bugs_of_ranks_are_named_by_layers_or_by_logits_alone(names):
    model = load(WITNESSES / DENSE, ranks=2).with_parts(checkpoint=QkvAsOne)
    taps = taps_of(model, steps=())
    kept = [{name: one[name] for name in one if re.fullmatch(names, name)} for one in taps]
    (named,) = explained(DENSE, kept).faults
    assert named.id == "tp-fused-shard-contiguous" and named.taps == [*kept[0]]


@long
def test_an_mlp_beside_experts_that_is_summed_too_often_is_named():
    """By hand: two ranks give twice what the dense MLP of Gemma 4 says; a norm follows."""
    taps = taps_of(load(WITNESSES / "gemma4/sparse", ranks=2))
    twice = [{name: one * 2 if name.endswith("mlp.down_proj") else one
              for name, one in held.items()} for held in taps]  # fmt: skip
    diagnosis = explained("gemma4/sparse", twice)
    assert found(diagnosis) == ["tp-replicated-expert-summed"] and diagnosis.unexplained == []


class Unscaled(OpsForEach):
    def attention_scores(self, queries, keys, *, scale):
        return for_each(ops.attention_scores, queries, keys, scale=1.0)


@long
def test_other_bugs_are_named_in_what_the_ranks_make_up():
    """By hand: two ranks that leave the scale out, and then cut [Q; K; V] as one matrix too."""
    model = load(WITNESSES / DENSE, ranks=2)
    taps = taps_of(model.with_parts(ops=Unscaled), steps=())
    alone = explained(DENSE, taps)
    assert found(alone) == ["attn-scale-missing"] and alone.counterfactual
    taps = taps_of(model.with_parts(ops=Unscaled, checkpoint=QkvAsOne), steps=())
    both = explained(DENSE, taps)
    assert found(both) == ["tp-fused-shard-contiguous", "attn-scale-missing"]


@long
def test_where_ranks_are_apart_what_no_bug_makes_is_unexplained():
    """By hand: rank 1 alone has another stream from one tap on."""
    taps = taps_of(load(WITNESSES / DENSE, ranks=2))
    taps[1]["model.layers.1"] = taps[1]["model.layers.1"] + 0.5
    diagnosis = explained(DENSE, taps)
    assert diagnosis.verdict == "unknown" and found(diagnosis) == []
    assert [one.tap for one in diagnosis.unexplained] == ["model.layers.1", "model.norm"]
    assert "the ranks do not agree on model.layers.1" in diagnosis.conventions[0]


def test_ranks_that_choose_different_tokens_are_wrong():
    taps = taps_of(load(WITNESSES / DENSE, ranks=2))
    dumps = [dump_of(taps[0]), dump_of(taps[1], decoded=[8])]
    diagnosis = explain_ranks(load_one(WITNESSES / DENSE), dumps, path="port")
    (one,) = diagnosis.unexplained
    assert one.tap == "decoded" and "the ranks chose 7, 8" in one.shape


@pytest.mark.parametrize(
    ("core", "about"),
    [
        ("rank 0 and rank 1 say different prompts", [{}, {"tokens": [1, 2]}]),
        ("does not say its prompt", [{"tokens": None}] * 2),
        ("does not say what was fed", [{"decoded": None}] * 2),
        ("is of a batch", [{"batch": [TOKENS]}, {}]),
    ],
)
def test_what_is_refused(core, about):
    taps = taps_of(load(WITNESSES / DENSE, ranks=2))
    dumps = [dump_of(one, **said) for one, said in zip(taps, about, strict=True)]
    with pytest.raises(InputError, match=core):
        explain_ranks(load_one(WITNESSES / DENSE), dumps, path="port")


def test_another_prompt_than_the_ranks_say_is_refused():
    dumps = [dump_of(one) for one in taps_of(load(WITNESSES / DENSE, ranks=2))]
    with pytest.raises(InputError, match="its prompt is not that of --tokens"):
        explain_ranks(load_one(WITNESSES / DENSE), dumps, path="port", tokens=TOKENS[::-1])


def test_a_rank_of_which_nothing_can_be_compared_is_refused():
    taps = taps_of(load(WITNESSES / DENSE, ranks=2), steps=())
    dumps = [dump_of(taps[0]), dump_of({"other": np.ones((1, 8, 48), np.float32)})]
    with pytest.raises(InputError, match="nothing of rank 1 can be compared"):
        explain_ranks(load_one(WITNESSES / DENSE), dumps, path="port")


@long
def test_rounding_of_parts_in_half_precision_is_no_bug():
    """By law: four ranks round four parts of each sum, and one product rounds once."""
    taps = taps_of(load(WITNESSES / DENSE, ranks=4, dtype="bfloat16"), steps=())
    diagnosis = explained(DENSE, taps)
    assert diagnosis.verdict == "clean" and diagnosis.dtype == "bfloat16"
    assert "the ranks round their parts before they are summed" in diagnosis.conventions[-1]
    name = "model.layers.1.mlp.down_proj"
    off = [one | {name: one[name] * one[name].dtype.type(1.03)} for one in taps]
    wrong = [one.tap for one in explained(DENSE, off).unexplained]
    assert wrong == [name, "model.layers.1"]  # which is not the sum of what was dumped before it
