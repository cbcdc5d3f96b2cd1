"""What the sample of the proof benchmark holds of decoding: loops whose rope stretches with the
text, and what a cache holds. Weights, prompts and cases are drawn as in test_proof.py, whose shares
and margin hold here too.

By witness: transformers' loops and caches, with bugs planted in them.
"""

import os
import random

import pytest

from lockstep.parity.explain import explain
from tests.peers import test_cached_taps_peers as caches
from tests.peers import test_stretched_steps_peers as stretched
from tests.peers.test_proof import DTYPES, FIRST_SEED, SAMPLE, SINGLES, WRONG, fewest
from tests.proof.run.places import Places
from tests.witnesses import build

HALF = ("float32", "bfloat16")  # what caches are judged in


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Places:
    build.settle()
    return Places(tmp_path_factory.mktemp("proof"))


@pytest.fixture(scope="module")
def seed() -> int:
    return FIRST_SEED + int(os.environ.get("LOCKSTEP_SEED") or SAMPLE) % 1_000_000_000


def held(found: list) -> None:
    """Hold what was told of bugs, each (id, the ids that were told, all that was said), to it."""
    named = sum(ids == {id} for id, ids, _ in found)
    wrong = sum(bool(ids - {id}) for id, ids, _ in found)
    assert named >= fewest(len(found), SINGLES), found
    assert wrong <= len(found) - fewest(len(found), 1 - WRONG), found


def told(id: str, places: Places, name: str, seed: int, dump) -> tuple:
    found = explain(places.model(name, seed), dump)
    return id, {one.id for one in found.faults}, (name, found.unexplained, found.conventions)


def test_a_stretch_by_another_length_is_named(places, seed):
    found = []
    for name, lengths, bug in random.Random(seed).sample(stretched.PLANTED, 8):
        folder, count = places.folder(name, seed)[0], stretched.LENGTHS[lengths]
        dump = stretched.decode(folder, count, bug, seed=seed)
        found.append(told(stretched.IDS[name], places, name, seed, dump))
    held(found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", stretched.IDS)
def test_a_right_stretch_raises_no_alarm(places, seed, name, dtype):
    lengths = random.Random(f"{name} {dtype} {seed}").choice([*stretched.LENGTHS.values()])
    dump = stretched.decode(places.folder(name, seed)[0], lengths, seed=seed, dtype=dtype)
    found = explain(places.model(name, seed), dump)
    assert (found.verdict, found.unexplained) == ("clean", []) and found.compared > 40


def test_a_cache_that_holds_something_else_is_named(places, seed):
    found = []
    for bug, between in caches.PLANTED.items():
        for alone in (False, True):
            folder = places.folder("qwen3", seed)[0]
            dump = caches.decode(folder, between, alone=alone, seed=seed)
            found.append(told(bug, places, "qwen3", seed, dump))
    held(found)


@pytest.mark.parametrize("name", caches.BUILDS)
def test_right_caches_raise_no_alarm(places, seed, name):
    draw = random.Random(f"{name} {seed}")
    given = {"windows": draw.random() < 0.5, "alone": draw.random() < 0.5}
    dtype = draw.choice(HALF)
    dump = caches.decode(places.folder(name, seed)[0], seed=seed, dtype=dtype, **given)
    found = explain(places.model(name, seed), dump)
    assert (found.verdict, found.unexplained) == ("clean", [])
    assert sum("cached" in one for one in dump.shapes) >= 4
