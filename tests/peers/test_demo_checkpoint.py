"""Witnesses: transformers and mlx-lm on the demo's own checkpoint."""

import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from lockstep.parity.demo import make_corpus, make_gemma4, make_tokenizer, measure
from lockstep.parity.demo.story import SHOWN

DEMO = Path(make_corpus.__file__).resolve().parent
CHECKPOINT, QUESTIONS = DEMO / "checkpoint", DEMO / "questions.json"


def test_mlx_lm_and_transformers_answer_every_question_of_the_demo():
    assert measure.wrong_answers(CHECKPOINT, QUESTIONS) == []


def test_transformers_reads_the_tokenizer_and_the_chat_template_as_they_were_trained():
    ours = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(CHECKPOINT)
    for item in json.loads(QUESTIONS.read_text(encoding="utf-8")):
        turns = [{"role": "user", "content": item["question"]}]
        rendered = theirs.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        assert rendered == make_tokenizer.prompt(item["question"])
        assert theirs(rendered)["input_ids"] == ours.encode(rendered).ids


def test_mlx_lm_and_transformers_answer_every_question_that_its_gemma_is_asked():
    answers = {example.question: example.answer for example in make_gemma4.corpus()}
    for ask in (measure.ask_torch(DEMO / "gemma4"), measure.ask_mlx(DEMO / "gemma4")):
        assert {one: ask(one) for one in SHOWN} == {one: answers[one] for one in SHOWN}
