"""Mistakes behind the logits are named from the choices. By law: they were planted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.chain.choosing import fitting
from lockstep.parity.chain.replay import Run, missed
from lockstep.parity.chain.sampler import Sampler, Settings
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explain import explain
from lockstep.parity.faults.around import mistakes
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.conftest import DEMO, MODELS
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

V, N = 40, 18
EVERY = Settings(
    0.7, 8, 0.8, 0.1, repetition_penalty=1.4, presence_penalty=0.2, frequency_penalty=0.1
)
UNIFORMS = [*np.random.default_rng(5).random(2 * N + 2)]
CASES = {
    "every": EVERY,
    "greedy": Settings(repetition_penalty=1.2, presence_penalty=0.6),
    "tied": Settings(1.0, top_k=5),
    "equal": Settings(),
    "bare": Settings(0.9),
    "penalty": Settings(1.0, repetition_penalty=2.5),
    "few": Settings(1.0, top_k=3, min_p=0.9),
    "flat": Settings(1.0, top_p=0.75),
    "likely": Settings(1.0, min_p=0.3),
    "biased": Settings(1.0, logit_bias=((3, 4.0), (8, -np.inf))),
    "unsaid": Settings(1.0, given=frozenset({"temperature"})),
}
PROMPT = [*range(30), 1, 2, *range(30), 5, 7, *range(20)]  # longer than any window


class Rows:
    """Logits that were drawn, with ties, of which the first token is never likely."""

    own = True

    def __init__(self, case):
        draw = np.random.default_rng(2)
        width, size = (700, 0.1) if case in ("bare", "flat", "unsaid") else (V, 2.0)
        low = case == "penalty"
        digits = 0 if case in ("tied", "equal") else 1
        drawn = [(draw.standard_normal(width) * size).round(digits) for _ in range(N + 1)]
        self.found = [logits - 3 * low for logits in drawn]

    def rows(self, fed):
        return self.found, self.found[-1]


def run(case, edits=(), settings=None):
    """Return a run of a port whose sampler has mistakes in it."""
    settings = CASES[case] if settings is None else settings
    rows, sampler, chosen = Rows(case), Sampler(settings, uniforms(case), edits), []
    for _ in range(N):
        made = Run(rows, PROMPT, [*chosen, 0], settings, uniforms(case))
        chosen.append(sampler.choose(made.steps()[-1]))
    return Run(rows, PROMPT, chosen, settings, uniforms(case))


def uniforms(case):
    return [0.0, *UNIFORMS] if case == "few" else UNIFORMS


def planted(case, edit):
    """Return a run with a mistake, None if it comes to nothing that can be chosen."""
    try:
        return run(case, [edit])
    except InputError:
        return None


SAMPLING = [one for one in mistakes() if one.family == "sampling"]
VARIANTS = {(one.id, name) for one in SAMPLING for name in one.variants}


@pytest.mark.parametrize("case", CASES)
def test_a_right_sampler_has_no_mistake(case):
    assert missed(run(case).replayed(()) or []) == 0


def test_nothing_is_chosen_behind_a_choice_that_is_another(monkeypatch):
    """By hand: the third one. Pairs of mistakes by the thousand are told from the port so."""
    right, choice, made = run("greedy"), Run.choice, []
    other = replace(right, answer=[*right.answer[:2], right.answer[2] + 1, *right.answer[3:]])
    monkeypatch.setattr(Run, "choice", lambda *given: made.append(1) or choice(*given))
    assert right.is_explained(()) and len(made) == N
    assert not other.is_explained(()) and len(made) == N + 3


@long
def test_every_form_is_found_by_the_choices_it_makes():
    """By law: what was planted explains them, alone or beside some others that fit as well."""
    assert found_among(lambda one: [one, *SAMPLING[::8]]) == VARIANTS


def found_among(others):
    """Plant every form once, where it acts; return those that are found among some mistakes."""
    acted = set()
    for case in CASES:
        for one in SAMPLING:
            for variant, edit in one.variants.items():
                if (one.id, variant) in acted:
                    continue
                port = planted(case, edit)
                if port is None or not missed(port.replayed(()) or []):
                    continue
                fit = fitting(port, others(one))
                assert fit is not None and len(fit.chosen) == 1, (case, one.id, variant)
                said = {fit.chosen[0].mistake.id, *fit.ties[0]}
                assert one.id in said, (case, one.id, variant)
                acted.add((one.id, variant))
    return acted


MODEL = MODELS / "untied_float32"
TOKENS = [3, 14, 15, 92, 65]


@pytest.fixture(scope="module")
def model():
    return reference.load(MODEL)


@pytest.fixture(scope="module")
def rows(model):
    """The logits of a greedy run, and its choices: 12 steps behind the prompt."""
    fed, found = [*TOKENS], []
    for _ in range(13):
        found.append(model.forward([fed])[0])
        fed.append(int(found[-1][-1].argmax()))
    return found, fed[len(TOKENS) :]


def dump(rows=None, path="port", **about):
    """Return a dump that says things, with logits or without."""
    taps = {} if rows is None else {"logits": rows[0][None]}
    for number, row in enumerate(rows[1:] if rows else (), 1):
        taps[f"step.{number}/logits"] = row[-1:][None]
    said = {"format": "lockstep-trace", "version": "1", "tokens": TOKENS, **about}
    text = {key: one if isinstance(one, str) else json.dumps(one) for key, one in said.items()}
    shapes = {name: value.shape for name, value in taps.items()}
    return Dump(Path(path), shapes, taps.__getitem__, text)


def stages(found):
    return {one["stage"]: one["right"] for one in found.stages}


def ids(found):
    return [one.id for one in found.faults]


FREE = {"ignore_eos": True}


def test_a_right_answer_is_right(model, rows):
    logits, answer = rows
    words = explain(model, dump(generated=answer, sampling=FREE))
    assert (words.verdict, stages(words)) == ("clean", {"sampling": True})
    assert "the port did not dump its own" in words.conventions[0]
    assert explain(model, dump(generated=answer, sampling=FREE, dtype="fp32")).verdict == "clean"
    own = explain(model, dump(logits, decoded=answer[:-1], generated=answer, sampling=FREE))
    assert (own.verdict, stages(own)) == ("clean", {"model": True, "sampling": True})


def test_what_was_only_fed_is_no_choice(model, rows):
    """By law: a trace of given tokens says `decoded`, and chooses nothing."""
    logits, answer = rows
    assert explain(model, dump(logits, decoded=answer[:-1])).stages == [
        {"stage": "model", "compared": 1, "right": True}
    ]


def test_steps_of_several_tokens_are_not_judged(model, rows):
    logits, answer = rows
    taps = {"logits": logits[0][None], "step.1/logits": logits[2][-2:][None]}
    about = {
        "format": "lockstep-trace", "tokens": TOKENS, "decoded": answer[:2], "step_lengths": [2],
        "generated": answer[:3], "sampling": FREE,
    }  # fmt: skip
    text = {key: one if isinstance(one, str) else json.dumps(one) for key, one in about.items()}
    shapes = {name: value.shape for name, value in taps.items()}
    found = explain(model, Dump(Path("port"), shapes, taps.__getitem__, text))
    assert found.verdict == "clean" and "several tokens at once" in found.conventions[-1]


@long
def test_a_tie_of_the_ports_own_logits_tells(model, rows):
    """By hand: two logits of the first step are made equal, and the port takes the higher id."""
    logits, answer = [one.copy() for one in rows[0]], [*rows[1]]
    logits[0][-1, 119] = logits[0][-1].max()
    port = dump(logits, decoded=answer[:-1], generated=[119, *answer[1:]], sampling=FREE)
    found = explain(model, port, faults=mistakes())
    assert ids(found) == ["argmax-tie-break"] and found.faults[0].taps == ["decoded"]
    assert found.faults[0].seen.startswith("1 of 13 choices are others")


@long
def test_a_drawn_answer(model, rows):
    """By law: drawn by the reference's own sampler, with a cut that the port leaves out."""
    from lockstep.reference.decoding.autoregressive import generate
    from lockstep.reference.decoding.sampling import sample
    from lockstep.reference.scheduling.sampling_options import SamplingOptions

    numbers = iter(UNIFORMS)
    wide = SamplingOptions(temperature=1.0, top_k=6)
    answer = [*generate(model, TOKENS, max_tokens=24, stop=(),
                        choose=lambda row: sample(row, wide, uniform=next(numbers)))]  # fmt: skip
    said = {"temperature": 1.0, "top_k": 6, "ignore_eos": True}
    right = explain(model, dump(generated=answer, uniforms=UNIFORMS, sampling=said))
    assert right.verdict == "clean" and stages(right) == {"sampling": True}
    narrow = {**said, "top_p": 0.5}
    found = explain(model, dump(generated=answer, uniforms=UNIFORMS, sampling=narrow))
    assert ids(found) == ["sampler-setting-ignored"] and found.faults[0].variant == "top-p"
    biased = {**said, "logit_bias": {str(answer[0]): False, "3": 1.5}}
    found = explain(model, dump(generated=answer, uniforms=UNIFORMS, sampling=biased))
    assert ids(found) == ["sampler-setting-ignored"] and found.faults[0].variant == "logit bias"
    unsaid = explain(model, dump(generated=answer, sampling=said))
    assert unsaid.verdict == "clean" and "judged by their likelihood" in unsaid.conventions[-1]


@long
@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        ("first-token-dropped", lambda right: right[1:]),
        ("token-handed-out-twice", lambda right: [right[0], *right]),
        ("prompt-echoed", lambda right: [*TOKENS, *right]),
    ],
)
def test_the_loop(expected, answer, model, rows):
    """By hand: the right answer, with its ids moved."""
    found = explain(model, dump(generated=answer(rows[1]), sampling=FREE))
    assert ids(found) == [expected] and stages(found)["decoding"] is False


def test_the_last_token_of_the_prompt_is_fed_again(model):
    """By law: the reference, fed so."""
    fed = [*TOKENS, TOKENS[-1]]
    for _ in range(8):
        fed.append(int(model.forward([fed])[0, -1].argmax()))
    found = explain(model, dump(generated=fed[len(TOKENS) + 1 :], sampling=FREE))
    assert ids(found) == ["prompt-fed-one-too-far"]


OFF = ["max-tokens-off-by-one"]


@pytest.mark.parametrize(("expected", "count"), [([], 13), (OFF, 14), (OFF, 12)])
def test_the_number_of_tokens(expected, count, model, rows):
    right = explain(model, dump(generated=rows[1], sampling={**FREE, "max_new_tokens": 26 - count}))
    assert ids(right) == expected


def test_an_answer_that_ends_too_early_has_no_name(model, rows):
    found = explain(model, dump(generated=rows[1], sampling={**FREE, "max_new_tokens": 40}))
    assert found.verdict == "unknown" and stages(found)["decoding"] is False
    assert found.unexplained[0].shape == (
        "13 ids, where 40 were asked for, and none of them ends the text"
    )


def test_an_end_of_text_that_is_run_over():
    """By hand: the demo ends a text with 699 or 697."""
    model = reference.load(DEMO)

    def found(*generated):
        return explain(model, dump(generated=[*generated], sampling={}), faults=[
            one for one in mistakes() if one.id.startswith("eos")
        ]).faults  # fmt: skip

    assert found(5, 6, 699) == []
    (both,) = found(5, 699, 6)
    assert (both.id, both.also_fits) == ("eos-ignored", ["eos-set-incomplete"])
    (one,) = found(5, 699, 6, 697)
    assert (one.id, one.also_fits) == ("eos-set-incomplete", [])


def test_choices_like_no_mistake_have_no_name(model):
    found = explain(model, dump(generated=[5, 5, 5, 5], sampling=FREE))
    assert found.verdict == "unknown" and found.faults == []
    assert "dump the logits" in found.unexplained[0].shape
