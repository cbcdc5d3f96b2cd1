"""Generation as `generate` reports it: tokens, text, timings, and what to compute in. By hand."""

from types import SimpleNamespace

import pytest

from lockstep import fast, reference
from lockstep.parity.generating import Generation, own_dtype, timings, tokenizer_of
from lockstep.parity.uniforms import seeded
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.tokenizer.sampling_options import SamplingOptions


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
    assert list(found) == ["tokens", "text", "prompt_tokens", "timings"]
    assert found["text"] == "".join(said) == "2 + 2 equals 4."
    assert found["prompt_tokens"] == len(question(model))
    assert found["tokens"][-1] in model.checkpoint.generation.eos_token_ids
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


def test_no_token_takes_no_time(model):
    found = generation(model).run([5], 0, lambda text: None)
    assert found["tokens"] == [] and set(found["timings"].values()) == {None}


def test_timings_by_hand():
    assert timings([10.0, 12.0, 12.5, 13.0], 8) == {
        "first_token_s": 2.0,
        "prefill_tokens_per_second": 4.0,
        "decode_tokens_per_second": 2.0,
        "total_s": 3.0,
    }
    assert timings([1.0, 2.0], 4)["decode_tokens_per_second"] is None


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
