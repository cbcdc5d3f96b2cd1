"""A chat whose cache goes on from turn to turn says what one without a cache says. By law."""

import json
import shutil
from argparse import Namespace

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.cli.chat import chunk_of
from lockstep.parity.cli.writing import CACHES
from lockstep.parity.decoders.autoregressive import Autoregressive
from lockstep.parity.decoders.speculative import Speculative
from lockstep.parity.generating.chat import Chat
from lockstep.parity.generating.generation import Generation
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.tokenizer.chatml import CHATML, knows_thinking, with_template
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests.parity.conftest import DEMO, MODELS
from tests.sampled import sampled

GEMMA = DEMO.parent / "gemma4"
SIDES = {
    "reference": reference.load,
    "cpu": lambda path: fast.load(path, backend="cpu"),
    "mlx": lambda path: fast.load(path, backend="mlx"),
}
TURNS = ["What is 2+2?", "Tell me about a king.", "And what is 12 + 7?", "What is 2+2?"]
SHORTER = CHATML.replace(
    "message['content'] ", "(message['content'][:3] if not loop.last else message['content']) "
)


def asked(kind: str | None) -> Namespace:
    return Namespace(decoder="autoregressive", cache=kind)


class Alternating(Autoregressive):
    """A decoder whose cache cannot be gone on from."""

    in_order = False


def chat(model, *, decoder=None, cache=None, size=None, seed=1, variables=None, **options) -> Chat:
    made = Generation(model, SamplingOptions(**options), seeded(seed), ignore_eos=False,
                      decoder=decoder, cache=cache, size=size)  # fmt: skip
    tokenizer = load_tokenizer(model.checkpoint.path)
    return Chat(made, tokenizer, system="Be brief.", variables=variables or {})


def held_against_no_cache(one: Chat, other: Chat, *, count=12) -> list[int]:
    """Ask both the same, of which the second forgets its cache; return what the first kept."""
    kept = []
    for turn in TURNS:
        answers = []
        for side in (one, other):
            said = []
            answers.append(side.answer(turn, count, said.append))
            assert "".join(said) == answers[-1]["text"]
        kept.append(answers[0].pop("cached_tokens"))
        answers[1].pop("cached_tokens")
        other.cache, other.held = None, []
        assert answers[0]["tokens"] == answers[1]["tokens"]
        assert answers[0]["prompt_tokens"] == answers[1]["prompt_tokens"] > kept[-1]
    assert one.messages == other.messages and len(one.messages) == 1 + 2 * len(TURNS)
    return kept


@pytest.fixture(params=SIDES)
def load(request):
    return SIDES[request.param]


@sampled(1, "cpu-options1")
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "presence_penalty": 0.2}])
def test_what_was_said_is_not_read_again(load, options):
    """By law and by hand: all is kept but for the end of the turn and what follows it."""
    model = load(DEMO)
    one = chat(model, **options)
    kept = held_against_no_cache(one, chat(model, **options))
    assert kept[0] == 0 and kept == sorted(kept)
    lengths = [len(one.tokenizer.encode_chat(one.messages[:end], add_generation_prompt=False))
               for end in (3, 5, 7)]  # fmt: skip
    assert all(found > length - 5 for found, length in zip(kept[1:], lengths, strict=True))


@pytest.mark.parametrize("draft", ["lookup", str(DEMO)])
def test_drafts_that_were_not_kept_are_not_in_the_cache(draft):
    model = SIDES["cpu"](DEMO)
    decoders = [Speculative(draft, draft_tokens=3, ngram=3) for _ in range(2)]
    kept = held_against_no_cache(*(chat(model, decoder=one) for one in decoders))
    assert all(kept[1:])


def test_a_template_that_changes_earlier_turns_is_followed(tmp_path):
    """By hand: earlier answers are cut to three letters, so the cache is cut back to there."""
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    (folder / "chat_template.jinja").write_text(SHORTER)
    model = SIDES["cpu"](folder)
    one = chat(model)
    kept = held_against_no_cache(one, chat(model))
    before = one.tokenizer.render_chat(one.messages[:2])
    assert 0 < kept[1] <= len(one.tokenizer.encode(before + "2 +")) + 1


@sampled(0)
@pytest.mark.parametrize("side", SIDES)
def test_windows_that_cannot_be_cut_back_begin_anew(side, tmp_path):
    """Gemma 4 in miniature slides by 16 tokens: a cut back of more than a few is refused."""
    folder = tmp_path / "model"
    shutil.copytree(GEMMA, folder)
    (folder / "chat_template.jinja").write_text(SHORTER)
    model = SIDES[side](folder)
    kept = held_against_no_cache(chat(model, cache="sliding"), chat(model))
    assert kept[0] == 0 and len(kept) == len(TURNS)
    assert all(held_against_no_cache(chat(model), chat(model))[1:])


def test_a_text_that_must_not_be_read_in_parts_begins_anew(monkeypatch):
    """By hand: beyond 80 tokens, as with a rope that depends on the length of the text."""
    monkeypatch.setattr("lockstep.parity.generating.chat.steady_length", lambda config: 80)
    model = SIDES["cpu"](DEMO)
    one = chat(model)
    found = [one.answer(turn, 4, lambda text: None) for turn in TURNS]
    kept = [(answer["prompt_tokens"] <= 80, answer["cached_tokens"] > 0) for answer in found]
    assert kept[0] == (True, False) and (True, True) in kept and kept[-1] == (False, False)
    assert all(short or not cached for short, cached in kept)


class Numbers:
    """A tokenizer whose text is numbers, and whose template shows two of each earlier message."""

    def encode_chat(self, messages, **variables) -> list[int]:
        shown = [message["content"].split()[:2] for message in messages[:-1]]
        return [
            int(one) for part in (["3"], *shown, messages[-1]["content"].split()) for one in part
        ]

    def decode(self, tokens, *, special) -> str:
        return " ".join(map(str, tokens))


@pytest.mark.parametrize("name", ["llama_dynamic", "llama_longrope"])
def test_keys_that_a_long_text_turned_are_not_kept_for_a_shorter_one(load, name):
    """By law: what the cache holds is what a chat without the long turn holds, key for key.

    Both models turn all keys farther once a text has more than 16 tokens.
    """
    model = load(MODELS.parent / "llama" / name)
    long, short = " ".join(map(str, range(40, 60))), "7 8 9"
    one, other = (Chat(Generation(model, SamplingOptions(), seeded(1), ignore_eos=True),
                       Numbers(), system=None, variables={}) for _ in range(2))  # fmt: skip
    first = one.answer(long, 4, lambda text: None)
    assert first["prompt_tokens"] > 16 and len(one.held) > 16
    other.messages = list(one.messages)
    again, fresh = (side.answer(short, 4, lambda text: None) for side in (one, other))
    assert again["prompt_tokens"] < 16 and again["tokens"] == fresh["tokens"]
    assert again["cached_tokens"] == 0 and one.held == other.held
    host = model.backend.host if hasattr(model, "backend") else np.asarray
    for found, expected in zip(one.cache.state(), other.cache.state(), strict=True):
        for mine, theirs in zip(found, expected, strict=True):
            assert np.array_equal(host(mine[0]), host(theirs[0]))
    third = one.answer("11 12", 3, lambda text: None)
    assert third["cached_tokens"] > 0 and third["prompt_tokens"] <= 16  # short texts are gone on


def test_a_decoder_that_changes_the_order_begins_anew():
    model = SIDES["cpu"](DEMO)
    assert held_against_no_cache(chat(model, decoder=Alternating()), chat(model)) == [0] * 4


@sampled(4, "cpu-13")
@pytest.mark.parametrize("calls", [1, 3, 6, 7, 8, 13])
def test_an_answer_can_be_stopped_and_the_chat_goes_on(load, calls):
    """By law: after each stage of a pass; the next answer is that of the same messages."""
    model = load(DEMO)
    one = chat(model)
    whole = chat(model).answer(TURNS[0], 12, lambda text: None)["tokens"]
    told = iter(range(100))
    answer = one.answer(TURNS[0], 12, lambda text: None, stopped=lambda: next(told) + 1 == calls)
    assert answer["ended_by"] == "interrupted"
    assert answer["tokens"] == whole[: (calls - 1) // 6]  # six stages a pass
    other = chat(model)
    other.messages = list(one.messages)
    again, fresh = (side.answer(TURNS[1], 12, lambda text: None) for side in (one, other))
    assert again["tokens"] == fresh["tokens"]
    assert (again["cached_tokens"] > 0) == bool(answer["tokens"]) and not fresh["cached_tokens"]


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_a_long_prompt_is_stopped_after_the_chunk_that_is_computed(chunks):
    """By hand, on MLX, which computes a chunk in one go: no evaluation follows the Ctrl-C."""
    model = SIDES["mlx"](DEMO)
    one, done = chat(model), []
    one.generation.chunk = 16
    evaluate = model.backend.evaluate
    model.backend.evaluate = lambda *arrays: done.append(evaluate(*arrays))
    answer = one.answer("king " * 70, 12, lambda text: None, stopped=lambda: len(done) == chunks)
    assert answer["ended_by"] == "interrupted" and answer["tokens"] == []
    assert answer["prompt_tokens"] > 70 and len(done) == chunks


@sampled(7, "cpu-sliding-18")
@pytest.mark.parametrize("calls", [8, 15, 18])
@pytest.mark.parametrize("cache", ["sliding", "rotating", "rotating-mlx-lm", "rotating-temporal"])
def test_windows_are_not_gone_on_from_where_a_step_was_torn(load, cache, calls):
    """By law: some layers have moved by then, and some have not; after a whole step all have."""
    model = load(GEMMA if cache == "sliding" else DEMO)
    size = None if cache == "sliding" else 16  # a ring that is full
    one, other = (chat(model, cache=cache, size=size) for _ in range(2))
    told = iter(range(100))
    answer = one.answer(TURNS[0], 12, lambda text: None, stopped=lambda: next(told) + 1 == calls)
    assert answer["ended_by"] == "interrupted" and answer["tokens"]
    other.messages = list(one.messages)
    again, fresh = (side.answer(TURNS[1], 12, lambda text: None) for side in (one, other))
    assert again["tokens"] == fresh["tokens"] and again["cached_tokens"] == 0


def test_an_answer_that_fails_is_forgotten_with_what_was_read_of_it(load):
    """By law: the next answer is that of the same messages, to a chat that has no cache."""
    one = chat(load(DEMO))
    one.answer(TURNS[0], 12, lambda text: None)
    messages, other = list(one.messages), chat(one.generation.model)
    with pytest.raises(OSError, match="nobody listens"):
        one.answer(TURNS[1], 12, deaf)
    assert one.messages == messages
    other.messages = messages
    again, fresh = (side.answer(TURNS[2], 12, lambda text: None) for side in (one, other))
    assert again == again | {name: fresh[name] for name in ("tokens", "text", "cached_tokens")}


def deaf(text: str) -> None:
    raise OSError("nobody listens")


def test_an_answer_that_a_stop_string_cut_is_kept_as_it_was_shown():
    made = Generation(SIDES["cpu"](DEMO), SamplingOptions(), seeded(0), ignore_eos=False,
                      stop_strings=["equ"])  # fmt: skip
    one = Chat(made, load_tokenizer(DEMO), system=None, variables={})
    assert one.answer(TURNS[0], 12, lambda text: None)["text"] == "2 + 2 "
    assert one.messages[-1] == {"role": "assistant", "content": "2 + 2 "}
    assert one.answer(TURNS[0], 12, lambda text: None)["cached_tokens"] > 15


def test_special_tokens_of_an_answer_stay_in_the_chat():
    """By hand: a template may cut between the marks of thinking, if it sees them."""
    one = chat(SIDES["cpu"](DEMO))
    start, end = (one.tokenizer.encode(mark)[0] for mark in ("<|im_start|>", "<|im_end|>"))
    two = one.tokenizer.encode("2")[0]
    document = {"tokens": [start, two, end], "ended_by": "stop id", "text": "2"}
    assert one.content(document) == "<|im_start|>2"
    assert one.content(document | {"ended_by": "max tokens"}) == "<|im_start|>2<|im_end|>"


def test_special_tokens_stay_in_an_answer_that_a_stop_string_cut():
    """By hand: marks before the cut and none behind it; the stop is equ, and may hold one."""
    one = chat(SIDES["cpu"](DEMO))
    start, end = (one.tokenizer.encode(mark)[0] for mark in ("<|im_start|>", "<|im_end|>"))
    two, stop, e, qu = (one.tokenizer.encode(part) for part in ("2 é ", "equ", "e", "qu"))
    for tokens, expected in (
        ([start, *two, *stop], "<|im_start|>2 é "),
        ([*two, end, *stop, start], "2 é <|im_end|>"),
        ([*two, *e, end, *qu], "2 é "),
        ([*two, *stop], "2 é "),
    ):
        document = {"tokens": tokens, "ended_by": "stop string", "text": "2 é "}
        assert one.content(document) == expected


def test_a_chat_that_is_too_long_is_refused_and_forgets_the_message():
    one = chat(SIDES["cpu"](DEMO))
    context = one.generation.model.config.max_position_embeddings
    with pytest.raises(InputError, match=rf"tokens, but the model's context is {context}"):
        one.answer("king " * context, 12, pytest.fail)
    assert len(one.messages) == 1
    assert one.answer(TURNS[0], 12, lambda text: None)["ended_by"] == "stop id"


def without_template(tmp_path, *, marks=True):
    folder = tmp_path / "bare"
    shutil.copytree(DEMO, folder)
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": None}))
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["eos_token_id"]
    (folder / "config.json").write_text(json.dumps(config))
    if not marks:
        text = (folder / "tokenizer.json").read_text().replace("<|im_", "<|xx_")
        (folder / "tokenizer.json").write_text(text)
    return folder


def test_chatml_stands_in_where_its_tokens_are_there(tmp_path):
    """The demo's own template is ChatML's: the same ids, and the end of a turn ends a text."""
    bare = load_tokenizer(without_template(tmp_path))
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b\n"}]
    found = with_template(bare)
    assert found.encode_chat(messages) == load_tokenizer(DEMO).encode_chat(messages)
    assert found.eos_token_ids - bare.eos_token_ids == set(bare.encode("<|im_end|>"))
    assert with_template(found) is found


def test_the_end_of_a_turn_ends_an_answer_and_no_plain_text(tmp_path):
    model = SIDES["cpu"](without_template(tmp_path))
    plain, talk = (Generation(model, SamplingOptions(), seeded(0), ignore_eos=False, chat=chat)
                   for chat in (False, True))  # fmt: skip
    assert (plain.stop, talk.stop) == (frozenset(), {*plain.tokenizer.encode("<|im_end|>")})
    tokens = talk.tokenizer.encode_chat([{"role": "user", "content": TURNS[0]}])
    assert talk.run(tokens, 20, lambda text: None)["text"] == "2 + 2 equals 4."
    assert len(plain.run(tokens, 20, lambda text: None)["tokens"]) == 20


def test_no_template_and_no_marks_is_an_error(tmp_path):
    bare = load_tokenizer(without_template(tmp_path, marks=False))
    with pytest.raises(InputError, match="no chat template, and no tokens"):
        with_template(bare)


def test_who_knows_of_thinking():
    assert not knows_thinking(load_tokenizer(DEMO))


@sampled(2, "int8")
@pytest.mark.parametrize("kind", [one for one in CACHES if chunk_of(asked(one)) is not None])
def test_chunks_that_a_chat_reads_change_no_token(kind):
    """By law: with every cache for which a chat reads its prompts in chunks by itself."""
    model, texts = SIDES["cpu"](GEMMA if kind == "sliding" else DEMO), []
    for chunk in (None, 7):
        one = chat(model, cache=kind)
        one.generation.chunk = chunk
        texts.append([one.answer(turn, 6, lambda text: None)["tokens"] for turn in TURNS[:3]])
    assert texts[0] == texts[1] and all(texts[0])


def test_a_chat_reads_whole_what_looks_at_how_tokens_come():
    for kind in ("rotating", "rotating-mlx-lm", "turbo4", "turbo2-mse"):
        assert chunk_of(asked(kind)) is None
    assert chunk_of(Namespace(decoder="wedlm", cache=None)) is None
    assert chunk_of(asked(None)) == 512
