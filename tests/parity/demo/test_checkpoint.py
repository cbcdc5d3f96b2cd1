"""The demo's corpus and checkpoint, as far as can be seen without running or training a model."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from lockstep.parity.demo import make_corpus, make_tokenizer, world
from lockstep.reference.checkpoint.safetensors import SafetensorsFile

DEMO = Path(make_corpus.__file__).resolve().parent
CHECKPOINT = DEMO / "checkpoint"
QUESTIONS = json.loads((DEMO / "questions.json").read_text(encoding="utf-8"))
CORPUS = make_corpus.make_corpus(seed=2)
CONFIG = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]


def of_kind(kind: str) -> list[make_corpus.Example]:
    return [example for example in CORPUS if example.kind == kind]


def test_sums_are_right():
    assert len(of_kind("sum")) == 21 * 21 * 4
    for example in of_kind("sum"):
        first, second = numbers(example.question)
        assert numbers(example.answer) == [first, second, first + second]


def test_differences_are_right():
    assert len(of_kind("difference")) == 21 * 22 // 2 * 4
    for example in of_kind("difference"):
        taken_first = example.question.startswith("Take")
        left, right = numbers(example.question)[:: -1 if taken_first else 1]
        assert numbers(example.answer) == [left, right, left - right]


def test_counting_is_right():
    for example in of_kind("count"):
        first, last = numbers(example.question)
        assert numbers(example.answer) == list(range(first, last + 1))


def test_neighbours_are_right():
    for kind, items in (("day", world.DAYS), ("month", world.MONTHS)):
        assert len(of_kind(kind)) == 4 * len(items)
        for example in of_kind(kind):
            asked = next(item for item in items if item in example.question)
            after = "after" in example.question or "follows" in example.question
            there = items[(items.index(asked) + (1 if after else -1)) % len(items)]
            assert example.answer == f"{there} comes {'after' if after else 'before'} {asked}."


def test_no_question_is_asked_twice():
    questions = [example.question for example in CORPUS]
    assert len(set(questions)) == len(questions)


def test_every_kind_has_questions_kept_back_and_more_that_are_taught():
    for kind in {example.kind for example in CORPUS}:
        kept_back = sum(example.held_out for example in of_kind(kind))
        assert 0 < kept_back < len(of_kind(kind)) / 4, kind


def test_a_sum_that_is_kept_back_is_taught_in_no_wording_and_no_order():
    taught = {frozenset(numbers(e.question)) for e in of_kind("sum") if not e.held_out}
    kept_back = {frozenset(numbers(e.question)) for e in of_kind("sum") if e.held_out}
    assert not taught & kept_back


def test_a_fact_that_cannot_be_computed_is_always_taught():
    taught = {example.answer for example in CORPUS if not example.held_out}
    facts = {e.answer for e in CORPUS if e.kind not in make_corpus.COMPUTED}
    assert facts <= taught


def test_the_corpus_is_the_same_in_every_process():
    command = [sys.executable, "-m", "lockstep.parity.demo.make_corpus", "--seed", "2"]
    printed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    here = [vars(example) for example in CORPUS]
    assert [json.loads(line) for line in printed.splitlines()] == here


def test_another_seed_keeps_back_something_else():
    other = make_corpus.make_corpus(seed=3)
    assert [e.question for e in other] == [e.question for e in CORPUS]
    assert [e.held_out for e in other] != [e.held_out for e in CORPUS]


def test_the_demo_asks_what_the_corpus_answers():
    answers = {example.question: example.answer for example in CORPUS}
    assert len(QUESTIONS) >= 12
    for item in QUESTIONS:
        assert answers[item["question"]] == item["answer"]


def test_the_folder_is_small():
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) < 1_000_000


def test_the_config_has_the_form_of_mlx_community():
    assert CONFIG["architectures"] == ["Qwen3ForCausalLM"]
    assert CONFIG["quantization"] == {"group_size": 64, "bits": 4, "mode": "affine"}
    assert CONFIG["quantization_config"] == CONFIG["quantization"]


def test_the_shape_is_a_hard_one():
    heads, kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    assert CONFIG["head_dim"] != CONFIG["hidden_size"] // heads
    assert 1 < kv_heads < heads
    assert CONFIG["tie_word_embeddings"]


def test_every_matrix_is_packed():
    entries = SafetensorsFile(CHECKPOINT / "model.safetensors").entries
    matrices = [name for name, entry in entries.items() if entry.dtype == "U32"]
    assert len(matrices) == 1 + 7 * CONFIG["num_hidden_layers"]
    for name in matrices:
        rows, packed = entries[name].shape
        assert entries[name.replace(".weight", ".scales")].shape == (rows, packed * 8 // 64)


def test_the_tokenizer_gives_every_text_back(tokenizer):
    for text in {text for e in CORPUS for text in (e.question, e.answer)} | {"Ω 🙂\tß 1234"}:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_tokenizer_is_of_qwens_construction(tokenizer):
    tokens = tokenizer.encode(make_tokenizer.prompt("What is 12 + 7?")).tokens
    assert tokens[:3] == ["<|im_start|>", "user", "Ċ"]
    assert tokens[-5:] == ["<|im_end|>", "Ċ", "<|im_start|>", "assistant", "Ċ"]
    assert tokens[3:-5] == ["What", "Ġis", "Ġ", "1", "2", "Ġ+", "Ġ", "7", "?"]
    assert tokenizer.encode("cafe\u0301").ids == tokenizer.encode("café").ids


def test_the_special_tokens_end_the_answer(tokenizer):
    generation = json.loads((CHECKPOINT / "generation_config.json").read_text(encoding="utf-8"))
    ends = [tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")]
    assert generation["eos_token_id"] == CONFIG["eos_token_id"] == ends
    assert tokenizer.get_vocab_size() <= CONFIG["vocab_size"]


def test_the_chat_template_writes_the_prompt_of_the_training():
    import jinja2

    source = (CHECKPOINT / "chat_template.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    turns = [{"role": "user", "content": "What is 2+2?"}]
    text = environment.from_string(source).render(messages=turns, add_generation_prompt=True)
    assert text == make_tokenizer.prompt("What is 2+2?")
