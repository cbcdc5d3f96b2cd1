"""Generation as `generate` reports it: tokens, text, timings, and what to compute in. By hand."""

from types import SimpleNamespace

import pytest

from lockstep import fast, reference
from lockstep.parity.decoders.speculative import LOOKUP, Speculative
from lockstep.parity.generating.generation import Generation, own_dtype, tokenizer_of
from lockstep.parity.generating.timing import Clock
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.scheduling.sampling_options import SamplingOptions


def generation(model, *, ignore_eos=False, **options):
    return Generation(model, SamplingOptions(**options), seeded(0), ignore_eos=ignore_eos)


def question(model, text="What is 2+2?"):
    return tokenizer_of(model.checkpoint).encode_chat([{"role": "user", "content": text}])


@pytest.fixture(scope="module")
def model():
    from tests.parity.conftest import DEMO

    return fast.load(DEMO, backend="cpu")


def test_the_document_has_the_keys_of_the_contract(model):
    said = []
    found = generation(model).run(question(model), 30, said.append)
    keys = ["tokens", "text", "prompt_tokens", "ended_by", "decoder", "timings"]
    assert list(found) == keys and found["ended_by"] == "stop id"
    assert found["text"] == "".join(said) == "2 + 2 equals 4."
    assert found["prompt_tokens"] == len(question(model))
    assert found["tokens"][-1] in model.checkpoint.generation.eos_token_ids
    assert found["timings"].pop("tokenize_s") is None
    assert all(value > 0 for value in found["timings"].values())


def test_the_end_can_be_ignored(model):
    stopped = generation(model).run(question(model), 30, lambda text: None)
    found = generation(model, ignore_eos=True).run(question(model), 30, lambda text: None)
    assert len(found["tokens"]) == 30
    assert found["tokens"][: len(stopped["tokens"])] == stopped["tokens"]


def test_every_backend_gives_one_document_but_for_the_time(model, demo):
    for options in ({}, {"temperature": 0.8, "top_p": 0.9}):
        found = [
            generation(one, **options).run(question(one), 12, lambda text: None) | {"timings": 0}
            for one in (model, fast.load(demo, backend="mlx"), reference.load(demo))
        ]
        assert found[0] == found[1] == found[2]


def test_without_a_tokenizer_there_are_tokens_and_no_text(plain):
    found = generation(reference.load(plain)).run([1, 2], 3, pytest.fail)
    assert found["text"] is None and len(found["tokens"]) == 3


def test_it_is_known_when_the_context_was_full(model):
    context = model.config.max_position_embeddings
    for room, limit, ended, full in (
        (3, 50, True, True), (3, 3, True, False), (9, 2, True, False), (90, 50, False, False),
    ):  # fmt: skip
        one = generation(model, ignore_eos=ended)
        tokens = [5] * (context - room + 1) if ended else question(model)
        one.run(tokens, limit, lambda text: None)
        assert one.context_is_full == full, (room, limit)


def test_it_ends_where_the_context_ends(model):
    context = model.config.max_position_embeddings
    found = generation(model, ignore_eos=True).run([5] * (context - 2), 50, lambda text: None)
    assert len(found["tokens"]) == 3  # the last one is not fed
    full = generation(model, ignore_eos=True).run([5] * context, 50, lambda text: None)
    assert len(full["tokens"]) == 1


@pytest.mark.parametrize("decoder", [None, Speculative(LOOKUP, draft_tokens=4, ngram=3)])
def test_a_prompt_beyond_the_context_is_not_gone_on_with(model, decoder):
    one = Generation(model, SamplingOptions(), seeded(0), ignore_eos=True, decoder=decoder)
    beyond = [5] * (model.config.max_position_embeddings + 9)
    found = one.run(beyond, 3, lambda text: None)
    assert (found["tokens"], found["ended_by"], one.context_is_full) == ([], "context", True)
    assert one.longest(beyond, 3) == len(beyond)


def test_no_token_takes_no_time(model):
    found = generation(model).run([5], 0, lambda text: None)
    assert found["tokens"] == [] and set(found["timings"].values()) == {None}


def test_timings_by_hand():
    """The prompt is read at 11, tokens come at 12, 12.5 and 13; ids were made in half a second."""
    times = iter([10.0, 11.0, 12.0, 12.5, 13.0])
    clock = Clock(0.5, now=lambda: next(times))
    clock.prompt_is_read()
    for _ in range(3):
        clock.token()
    assert clock.timings(8) == {
        "tokenize_s": 0.5,
        "prefill_s": 1.0,
        "first_token_s": 2.5,
        "decode_s": 1.0,
        "total_s": 3.5,
        "prefill_tokens_per_second": 8.0,
        "decode_tokens_per_second": 2.0,
    }


def test_one_token_has_no_rate_and_reading_ends_with_it():
    times = iter([1.0, 2.0, 2.5])
    clock = Clock(now=lambda: next(times))
    clock.token()
    found = clock.timings(4)
    assert (found["prefill_s"], found["first_token_s"]) == (1.0, 1.5)
    assert found["decode_tokens_per_second"] is None and found["tokenize_s"] is None


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}])
def test_reading_is_timed_apart_from_choosing(model, options):
    found = generation(model, **options).run(question(model), 3, lambda text: None)["timings"]
    assert found["prefill_s"] <= found["first_token_s"] <= found["total_s"]


def ended(model, count=30, **options):
    one = Generation(model, SamplingOptions(), seeded(0), ignore_eos=False, **options)
    said = []
    return one.run(question(model), count, said.append), said


def test_what_ended_a_text_is_said(model):
    assert ended(model)[0]["ended_by"] == "stop id"
    assert ended(model, 3)[0]["ended_by"] == "max tokens"
    found, said = ended(model, stop_strings=["equ"])
    assert (found["ended_by"], found["text"], "".join(said)) == ("stop string", *["2 + 2 "] * 2)


def test_a_stop_string_is_found_wherever_tokens_end(model):
    """By law: every substring of the answer cuts it where the answer first has it."""
    whole = ended(model)[0]
    for start in range(0, len(whole["text"]), 4):
        for length in (1, 3, 9):
            stop = whole["text"][start : start + length]
            found, said = ended(model, stop_strings=[stop])
            assert found["text"] == "".join(said) == whole["text"][: whole["text"].index(stop)]
            assert found["tokens"] == whole["tokens"][: len(found["tokens"])]


def test_a_stop_id_of_ones_own_ends_it_and_is_not_shown(model):
    whole = ended(model)[0]
    found, said = ended(model, stop_ids=[whole["tokens"][4]])
    assert found["tokens"] == whole["tokens"][: whole["tokens"].index(whole["tokens"][4]) + 1]
    assert found["text"] == "".join(said) == "2 + 2"


@pytest.mark.parametrize("chunk", [1, 4, 15, 99])
def test_a_prompt_in_chunks_gives_the_same_text(model, chunk):
    for one in (model, reference.load(model.checkpoint.path)):
        assert ended(one, chunk=chunk)[0] | {"timings": 0} == ended(one)[0] | {"timings": 0}


def test_what_a_cache_holds_already_is_not_read_again(model):
    """By law: a text that goes on from a cache of its beginning is the text from nothing."""
    tokens, made = question(model), generation(model)
    cache = made.made_cache(60)
    model.forward([tokens[:6]], cache=cache)
    found = made.run(tokens, 30, lambda text: None, cache=cache)
    assert found | {"timings": 0} == made.run(tokens, 30, lambda text: None) | {"timings": 0}
    assert cache.positions.length == len(tokens) + len(found["tokens"]) - 1


@pytest.mark.parametrize(
    ("backend", "name", "gpu", "dtype"),
    [
        ("reference", "tied", True, "float32"),
        ("cpu", "tied", True, "float32"),
        ("fast", "tied", False, "float32"),
        ("fast", "tied", True, "bfloat16"),
        ("mlx", "tied", True, "bfloat16"),
        ("mlx", "tied", False, "bfloat16"),
        ("mlx", "packed", False, "float32"),
        ("mlx", "packed", True, "bfloat16"),
        ("mlx", "plain", True, "float32"),
    ],
)
def test_what_is_computed_in_when_nobody_says(monkeypatch, request, backend, name, gpu, dtype):
    monkeypatch.setattr("lockstep.fast.backends.has_gpu", lambda: gpu)
    checkpoint = open_checkpoint(request.getfixturevalue(name))
    assert own_dtype(checkpoint, backend) == dtype


def test_a_broken_tokenizer_is_none_at_all(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    assert tokenizer_of(SimpleNamespace(path=tmp_path)) is None
