"""Ranks in processes of their own, held against the reference's; bugs planted in them are named.

By law where nothing is wrong. Bugs are made in `fast` (wrong_ranks.py), and names are found with
the reference's own wrong runs.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from lockstep.fast.parallel.launch import launch
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.parallel.compare import compare
from lockstep.parity.parallel.naming import found_in_traces
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.parallel.model import load
from tests.parity.parallel.wrong_ranks import ROUNDED_APART, TOKENS
from tests.sampled import sampled

long = sampled(1)  # of the proofs below that take seconds each

WITNESSES = Path(__file__).parents[2] / "witnesses"
CATALOGUE = "tp-allreduce-missing"
# A model, how many ranks, and the first tap that each bug spoils; "" if it is right.
PLANTED = {
    ("gpt2/original", 3): {
        "right": "",
        "tp-rowparallel-bias": "transformer.h.0.attn.c_proj",
        "tp-fused-shard-contiguous": "transformer.h.0.attn.c_attn of rank 0",
        "tp-allreduce-missing of mlp": "transformer.h.0.mlp.c_proj",
    },
    ("models/untied_float32", 4): {
        "right": "",
        ROUNDED_APART: "",
        "tp-allreduce-missing of attention": "model.layers.0.self_attn.o_proj",
        "tp-kv-shard": "model.layers.0.self_attn.k_proj of rank 1",
        "tp-vocab-parallel-mask": "model.embed_tokens",
        "tp-residual-in-partial": "model.layers.0.residual",
        "tp-fused-shard-contiguous of gates": "model.layers.0.mlp.gate_proj of rank 1",
        "another": "model.layers.0.self_attn.o_proj",
    },
}


@long
@pytest.mark.parametrize(("model", "ranks"), PLANTED)
def test_bugs_of_ranks_are_found_and_named(tmp_path, model, ranks):
    bugs, path = PLANTED[model, ranks], WITNESSES / model
    script = Path(__file__).parent / "wrong_ranks.py"
    command = [sys.executable, str(script), str(ranks), str(tmp_path), str(path), *bugs]
    assert launch(command, ranks).code == 0
    reference = load(path, ranks=ranks)
    for bug, first in bugs.items():
        dumps = [open_dump(tmp_path / f"{bug}.{rank}.safetensors") for rank in range(ranks)]
        result = compare(reference, dumps, TOKENS, decode=1, said=bug)
        assert (result.first_divergence.name if result.first_divergence else "") == first, bug
        assert result.compared > 40
        if bug == ROUNDED_APART:
            check_that_all_choose_alike(dumps)
        if first:
            found = [one.bug.id for one in found_in_traces(reference, dumps, TOKENS, decode=1)]
            assert found == ([] if bug == "another" else [bug.split(" of ")[0]]), bug


def check_that_all_choose_alike(dumps):
    """By law: every word is scored by one rank, and a gather copies what it made of it."""
    for step in ("", "step.1/"):
        sums, logits = (
            [dump.read(step + name).tobytes() for dump in dumps]
            for name in ("model.layers.1.residual", "logits")
        )
        assert len(set(sums)) == len(dumps) and len(set(logits)) == 1


def test_a_rank_that_alone_has_a_wrong_value_is_found(tmp_path):
    """By hand: of two ranks that are right, one number of the second one's keys is changed."""
    reference = load(WITNESSES / "models" / "untied_float32", ranks=2)
    taps = [{}, {}]
    reference.forward([TOKENS], trace=lambda name, value: keep(taps, name, value))
    name = "model.layers.1.self_attn.k_norm"
    assert compare(reference, [Held(one) for one in taps], TOKENS, decode=0, said="").compared
    taps[1][name] = taps[1][name].copy()
    taps[1][name][0, 2, 0, 5] += 0.5
    result = compare(reference, [Held(one) for one in taps], TOKENS, decode=0, said="")
    assert [tap.name for tap in result.taps if tap.status == "differs"] == [f"{name} of rank 1"]
    taps[1] = {}
    taps[0] = {}
    with pytest.raises(InputError, match="nothing was compared in step 0"):
        compare(reference, [Held(one) for one in taps], TOKENS, decode=0, said="")


def test_a_near_tie_is_no_divergence():
    """By hand: the ranks chose the next best word, as rounding may. They are fed that, all alike.

    Where one of them alone chose it, nothing is compared from there on, and that is said.
    """
    reference = load(WITNESSES / "models" / "untied_float32", ranks=2)
    best = np.argsort(reference.forward([TOKENS])[0, -1])
    other = int(best[-2])
    taps = two_steps(reference, other)
    right = [Held(one, [other]) for one in taps]
    result = compare(reference, right, TOKENS, decode=1, said="")
    assert result.verdict == "parity" and result.taps[-1].name == "step.1/logits"
    apart = [right[0], Held(taps[1], [int(best[-1])])]
    result = compare(reference, apart, TOKENS, decode=1, said="")
    (wrong,) = [tap for tap in result.taps if tap.status != "ok"]
    assert result.verdict == "diverged" and result.taps[-1] is wrong
    assert wrong.name == "step.1/decoded" and wrong.place is not None
    assert f"the ranks chose {other}, {best[-1]}, but should choose one token" in wrong.place


def test_what_is_not_there_is_not_said_to_be_right():
    """By hand: two right ranks, of which one wrote a tap less, then both a step less."""
    reference = load(WITNESSES / "models" / "untied_float32", ranks=2)
    taps = two_steps(reference, 7)
    for name in ("step.1/model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"):
        for rank, other in ((0, 1), (1, 0)):
            dumps = [Held(one, [7]) for one in taps]
            dumps[rank] = Held({key: one for key, one in taps[rank].items() if key != name}, [7])
            said = f"rank {rank} wrote no {name}, which rank {other} did"
            with pytest.raises(InputError, match=re.escape(said)):
                compare(reference, dumps, TOKENS, decode=1, said="")
    first = [{key: one for key, one in held.items() if "step." not in key} for held in taps]
    with pytest.raises(InputError, match="nothing was compared in step 1"):
        compare(reference, [Held(one, [7]) for one in first], TOKENS, decode=1, said="")
    with pytest.raises(InputError, match="rank 1 says 0 tokens of 1 steps"):
        compare(reference, [Held(taps[0], [7]), Held(taps[1])], TOKENS, decode=1, said="")


def two_steps(reference, token: int) -> list[dict]:
    """Return the taps of two right ranks, of a prompt and of one token behind it."""
    cache, taps = reference.make_cache(), [{}, {}]
    for prefix, fed in (("", TOKENS), ("step.1/", [token])):
        held: dict = {}
        reference.forward([fed], cache=cache, trace=held.__setitem__)
        for name, value in held.items():
            keep(taps, prefix + name, value)
    return taps


class Held:
    """Taps in memory, as a dump has them."""

    def __init__(self, taps, decoded=()):
        self.shapes, self.read, self.decoded = taps, taps.__getitem__, list(decoded)


def keep(taps, name, value):
    for rank, held in enumerate(taps):
        held[name] = value[rank] if isinstance(value, tuple) else value


def test_the_command_checks_every_rank(lockstep, plain, tmp_path):
    target = tmp_path / "out.json"
    said = lockstep("check", plain, "--tokens", "3,1,4,1,5", "--tensor-parallel", 2,
                    "--backend", "mlx", "--decode", 1, "--json", target)  # fmt: skip
    found = json.loads(target.read_text())
    assert said.code == 0 and found["verdict"] == "parity" and found["faults"] == []
    names = {tap["name"] for tap in found["taps"]}
    for name in ("model.layers.0.self_attn.q_proj of rank 1", "model.layers.1.mlp.down_proj",
                 "step.1/logits"):  # fmt: skip
        assert name in names
    assert "PARITY  mlx float32, 2 ranks" in said.out


@long
def test_right_ranks_have_parity_behind_a_near_tie(lockstep):
    """By law. In bfloat16 they choose another word than the reference does, at step 16."""
    model = WITNESSES / "llama" / "qwen2_yarn"
    said = lockstep("check", model, "--tokens", "3,1,4,1,5", "--tensor-parallel", 2,
                    "--backend", "mlx", "--dtype", "bfloat16", "--decode", 16)  # fmt: skip
    assert said.code == 0 and "PARITY" in said.out


@pytest.mark.parametrize(
    ("core", "arguments"),
    [
        ("not the reference", ["--tokens", "1,2", "--backend", "reference"]),
        ("takes one prompt, not a batch of 2", ["--tokens", "1,2", "--tokens", "3"]),
        ("cannot be cut for 3 ranks", ["--tokens", "1,2", "--tensor-parallel", 3]),
    ],
)
def test_what_is_refused(refuses, plain, core, arguments):
    refuses(core, "check", plain, "--tensor-parallel", 2, *arguments)
