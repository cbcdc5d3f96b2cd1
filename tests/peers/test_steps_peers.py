"""Decode loops of transformers: right ones are clean, and a cache gone wrong is named.

By witness, live: tests/proof/decoding.py puts bugs between transformers' cache and its attention.
"""

from pathlib import Path

import pytest
import torch

from lockstep import parity, reference
from lockstep.parity.explain import explain
from tests.proof import batches, builds, decoding, ports
from tests.proof.registry import named
from tests.witnesses import build

DTYPES = ("float32", "bfloat16", "float16")
BUILDS = ("mistral", "gpt2", "qwen3_moe_raw", "gemma4_e2b", "gemma4_26b", "qwen2_window")
ROPE = [n for n in decoding.STEP_BUGS if not n.startswith("learned")]
SLIDING = ("kv-ring", "kv-position-from", "mask-swa")
TURNED = ("rope-", "kv-offset", "kv-cached-before")
BY_HEAD = ("kv-head-count",)
# Which bugs there are in which build: Hadamard matrices are of powers of two, and so are few heads;
# those of Gemma's layers are of two widths; GPT-2 has no window, no rope, and a key head for each
# query head.
PLANTED = [
    *(("mistral", name) for name in ROPE if "basis" not in name),
    *(("qwen3_moe_raw", name) for name in ROPE if not name.startswith((*SLIDING, "kv-quant"))),
    *(("gemma4_e2b", name) for name in (
        "rope-pos-frozen-on-decode (0)", "kv-never-stored", "kv-ring-size-off-by-one (more)",
        "kv-ring-sliced-as-flat (mod)", "mask-swa-missing-in-decode",
        "kv-cursor-not-advanced (too early)")),
    ("models/tied_bfloat16", "kv-quant-basis-mismatch"),
    *(("gpt2", name) for name in decoding.STEP_BUGS
      if not name.startswith((*SLIDING, *TURNED, *BY_HEAD)) and "basis" not in name),
]  # fmt: skip
HALF = [  # of each build, in half precision
    ("mistral", "kv-ring-size-off-by-one (less)"), ("mistral", "rope-pos-frozen-on-decode (early)"),
    ("mistral", "kv-int8-noise (head)"), ("gpt2", "learned-pos-frozen-on-decode (late)"),
    ("gemma4_e2b", "kv-ring-sliced-as-flat (first)"), ("qwen3_moe_raw", "kv-never-stored"),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def settled() -> None:
    build.settle()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a build's folder, made once. The seed is fixed: what a bug moves depends on it."""
    root, done = tmp_path_factory.mktemp("builds"), {}

    def make(name: str) -> Path:
        if name.startswith("models/"):
            return Path(__file__).parents[1] / "witnesses" / name
        if name not in done:
            done[name] = builds.make(name, root / name, seed=0)
        return done[name]

    return make


def decode(folder, bug=None, lengths=(20, 1, 1, 1, 1), bugs=(), **options):
    port = ports.load(folder, bugs, **options)
    tokens = builds.tokens(1, folder, length=sum(lengths))[0].tolist()
    plant = None if bug is None else decoding.STEP_BUGS[bug]
    return decoding.run(port, tokens, list(lengths), plant)


def ids(found):
    return {fault.id for fault in found.faults}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", BUILDS)
def test_a_right_decode_raises_no_alarm(made, name, attention, dtype):
    """A prompt in two chunks, four steps; the cache of transformers keeps everything."""
    dump = decode(made(name), lengths=(14, 9, 1, 1, 1, 1), dtype=dtype, attention=attention)
    found = explain(reference.load(made(name)), dump)
    assert (found.verdict, found.unexplained, found.steps) == ("clean", [], 5)
    assert found.compared > 30 and found.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BUILDS)
def test_generate_raises_no_alarm(made, name, dtype):
    """transformers' own loop: with its caches of windows, and of the last token's logits alone."""
    port = ports.load(made(name), dtype=dtype, attention="sdpa")
    ids = torch.tensor(builds.tokens(1, made(name), length=20))
    with parity.capture.torch(port.model) as dump:
        port.model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=-1)
    found = explain(reference.load(made(name)), dump)
    assert (found.verdict, found.unexplained, found.steps) == ("clean", [], 4)
    assert "taps are of the prompt's last token alone" in found.conventions[0]


@pytest.mark.parametrize(("name", "bug"), PLANTED)
def test_a_cache_gone_wrong_is_named(made, name, bug):
    found = explain(reference.load(made(name)), decode(made(name), bug))
    assert ids(found) == {bug.partition(" (")[0]} and not found.unexplained
    assert all("step" in one.where for one in found.faults)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize(("name", "bug"), HALF)
def test_it_is_named_in_half_precision(made, name, bug, dtype):
    dump = decode(made(name), bug, dtype=dtype, attention="sdpa")
    found = explain(reference.load(made(name)), dump)
    assert ids(found) == {bug.partition(" (")[0]} and not found.unexplained


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_a_long_text_over_a_window(made, dtype):
    """46 tokens over a window of 9: a ring that has wrapped several times."""
    bug = "kv-ring-size-off-by-one (less)"
    for planted, wanted in ((None, set()), (bug, {"kv-ring-size-off-by-one"})):
        dump = decode(made("mistral"), planted, (40, *[1] * 6), dtype=dtype)
        found = explain(reference.load(made("mistral")), dump)
        assert ids(found) == wanted and not found.unexplained


@pytest.mark.parametrize(
    ("prefill", "cache"),
    [
        ("attn-scale-twice", "rope-pos-frozen-on-decode (0)"),
        ("gqa-tile-vs-repeat", "kv-never-stored"),
        ("rope-theta-default", "kv-cursor-not-advanced (too early)"),
        ("swiglu-gate-up-swapped", "kv-ring-sliced-as-flat (mod)"),
    ],
)
def test_bugs_of_the_model_and_of_its_cache_are_named_together(made, prefill, cache):
    bugs = [named(prefill)]
    found = explain(reference.load(made("mistral")), decode(made("mistral"), cache, bugs=bugs))
    assert ids(found) == {bugs[0].id, cache.partition(" (")[0]} and not found.unexplained


@pytest.mark.parametrize("bug", ["rope-pos-double-advance (begins)", "kv-of-other-layer (before)"])
def test_a_bug_from_the_second_chunk_on(made, bug):
    dump = decode(made("mistral"), bug, (12, 9, 1, 1))
    assert dump.about["step_lengths"] == "[9, 1, 1]"
    found = explain(reference.load(made("mistral")), dump)
    assert ids(found) == {bug.partition(" (")[0]} and not found.unexplained


PROMPTS = (9, 15, 12)
IN_ROPE = {"place (steps)": "kv-left-pad-merge", "row 0 (steps)": "rope-batched-kernel"}
IN_WPE = dict.fromkeys(IN_ROPE, "learned-pos-batch-shared-offset")
# In Mistral a window of 9 hides in its steps what fills up the left of a row.
IN_BATCHES = [
    (name, side, bug)
    for name in ("mistral", "gpt2", "gemma4_e2b", "qwen3_moe_raw")
    for side in ("left", "right")
    for bug in batches.BATCH_BUGS
    if (name, side) not in (("mistral", "right"), ("gemma4_e2b", "right"))
    and (name, side, bug) != ("mistral", "left", "mask-padding-attended (steps)")
]


def decode_batch(folder, side, bug="", **options):
    port = ports.load(folder, **options)
    tokens = builds.tokens(1, folder, length=max(PROMPTS) + 3, rows=len(PROMPTS)).tolist()
    return batches.run_batch(port, tokens, PROMPTS, left=side == "left", bug=bug)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["mistral", "gpt2", "qwen3_moe_raw", "gemma4_e2b", "llama"])
def test_a_right_batch_raises_no_alarm(made, name, side, dtype):
    """But for a window: transformers counts what fills a row up on its right as part of it."""
    found = explain(reference.load(made(name)), decode_batch(made(name), side, dtype=dtype))
    windowed = side == "right" and name in ("mistral", "gemma4_e2b")
    wanted = "they count in the window, though nobody sees them"
    assert [one.variant for one in found.faults] == [wanted] * windowed
    assert not found.unexplained and found.compared > 30 and found.steps == 3


@pytest.mark.parametrize(("name", "side", "bug"), IN_BATCHES)
def test_a_bug_of_a_padded_batch_is_named(made, name, side, bug):
    found = explain(reference.load(made(name)), decode_batch(made(name), side, bug))
    table = IN_WPE if name == "gpt2" else IN_ROPE
    assert ids(found) == {table.get(bug, "mask-padding-attended")} and not found.unexplained
    assert all("row" in one.where for one in found.faults)


@pytest.mark.parametrize("name", ["gpt2", "qwen3_moe_raw", "llama"])
def test_batches_of_either_side_are_compared(made, name):
    """`diff`: rows that are filled up on the left are those that are filled up on the right."""
    model = reference.load(made(name))
    left, right = (decode_batch(made(name), side) for side in ("left", "right"))
    for one, other in ((left, right), (right, left), (left, left)):
        assert parity.diff(one, other).verdict == "parity"
        found = parity.diff(one, other, model=model)
        assert found.verdict == "parity" and found.compared > 150
    wrong = parity.diff(right, decode_batch(made(name), "left", "row 0 (steps)"), model=model)
    assert wrong.first_divergence.name.startswith("step.1/")
    assert wrong.first_divergence.place.startswith("in rows 1, 2; first at [1, ")
