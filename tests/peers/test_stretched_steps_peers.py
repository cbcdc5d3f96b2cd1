"""Decode loops of transformers whose positions stretch with the text: dynamic NTK and LongRoPE.

By witness, live: keys in its cache keep the frequencies that they were turned by. Bugs are planted
by tests/proof/stretching.py with frequencies of transformers for another length.
"""

import pytest

from lockstep import reference
from lockstep.parity.explain import explain
from tests.proof import batches, builds, decoding, ports
from tests.proof.stretching import STRETCH_BUGS
from tests.witnesses import build

IDS = {"llama_dynamic": "rope-dynamic-ntk", "llama_longrope": "rope-longrope-always-long"}
LENGTHS = {  # the original length of these builds is 16
    "outgrown in step 3": (14, 1, 1, 1, 1),
    "outgrown in a chunk": (9, 4, 5, 1, 1),
    "outgrown by the prompt": (20, 1, 1, 1),
}
# LongRoPE has two tables: what is long from the start on stays so, by nearly any length.
PLANTED = [
    (name, lengths, bug)
    for name in IDS for lengths in LENGTHS for bug in STRETCH_BUGS
    if (name, lengths) != ("llama_longrope", "outgrown by the prompt") or "alone" in bug
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    build.settle()
    root = tmp_path_factory.mktemp("builds")
    return {name: builds.make(name, root / name, seed=0) for name in IDS}


def decode(folder, lengths, bug=None, seed=1, **options):
    tokens = builds.tokens(seed, folder, length=sum(lengths))[0].tolist()
    return decoding.run(ports.load(folder, **options), tokens, lengths, STRETCH_BUGS.get(bug))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", IDS)
def test_a_right_decode_raises_no_alarm(made, name, lengths, dtype):
    found = explain(reference.load(made[name]), decode(made[name], LENGTHS[lengths], dtype=dtype))
    assert (found.verdict, found.unexplained, found.conventions) == ("clean", [], [])
    assert found.steps == len(LENGTHS[lengths]) - 1 and found.compared > 40


@pytest.mark.parametrize(("name", "lengths", "bug"), PLANTED)
def test_a_stretch_by_another_length_is_named(made, name, lengths, bug):
    found = explain(reference.load(made[name]), decode(made[name], LENGTHS[lengths], bug))
    (one,) = found.faults
    assert one.id == IDS[name] and bug in one.variant.split(" or ") and not found.unexplained
    first = {"outgrown in step 3": 3, "outgrown in a chunk": 2, "outgrown by the prompt": 1}
    assert one.where == f"from step {first[lengths]} on"


@pytest.mark.parametrize("name", IDS)
def test_it_is_named_in_half_precision(made, name):
    bug = "cached keys are turned anew in every step"
    dump = decode(made[name], (14, 1, 1, 1, 1), bug, dtype="bfloat16", attention="sdpa")
    found = explain(reference.load(made[name]), dump)
    assert [(one.id, one.variant) for one in found.faults] == [(IDS[name], bug)]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", IDS)
def test_transformers_stretches_all_rows_of_a_batch_by_the_longest(made, name, side):
    """A row is then another one than alone, which is told; the longest row is right."""
    tokens = builds.tokens(1, made[name], length=18, rows=3).tolist()
    port = ports.load(made[name])
    dump = batches.run_batch(port, tokens, (9, 12, 15), left=side == "left")
    (one,) = explain(reference.load(made[name]), dump).faults
    assert (one.id, one.variant) == (IDS[name], "by the longest row of a batch")
    assert one.where == "in rows 0, 1 from step 2 on"
