"""Ranks in processes of their own, held against the reference's; bugs planted in them are named.

By law where nothing is wrong. Bugs are made in `fast` (wrong_ranks.py), and names are found with
the reference's own wrong runs.
"""

import json
import sys
from pathlib import Path

import pytest

from lockstep.fast.parallel.launch import launch
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.parallel.compare import compare
from lockstep.parity.parallel.faults import named
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.parallel.model import load
from tests.parity.parallel.wrong_ranks import TOKENS

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
        "tp-allreduce-missing of attention": "model.layers.0.self_attn.o_proj",
        "tp-kv-shard": "model.layers.0.self_attn.k_proj of rank 1",
        "tp-vocab-parallel-mask": "model.embed_tokens",
        "another": "model.layers.0.self_attn.o_proj",
    },
}


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
        if first:
            found = [one.id for one in named(reference, dumps, TOKENS, decode=1)]
            assert found == ([] if bug == "another" else [bug.split(" of ")[0]]), bug


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
    with pytest.raises(InputError, match="nothing was compared"):
        compare(reference, [Held(one) for one in taps], TOKENS, decode=0, said="")


class Held:
    """Taps in memory, as a dump has them."""

    def __init__(self, taps):
        self.shapes, self.read = taps, taps.__getitem__


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
