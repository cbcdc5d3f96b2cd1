"""Choices drawn with numbers that nobody told: who is accused, and of what. From fixed seeds."""

import re
import runpy
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.chain.drawing import (
    RATE,
    drawn_anyway,
    hotter,
    judge_drawn,
    needed,
    of_interest,
    right_samplers,
)
from lockstep.parity.chain.fitting import candidates
from lockstep.parity.chain.likelihood import STRAY, firsts, likelihoods, sampler_of
from lockstep.parity.chain.replay import Run
from lockstep.parity.chain.sampler import Sampler, Settings, Step
from lockstep.parity.explain import explain
from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.parity.faults.around import mistakes
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding.sampling.candidates import Candidates
from tests.parity.chain.test_choices import FREE, MODEL, TOKENS, dump, ids, stages
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

SAMPLING = [one for one in mistakes() if one.family == "sampling"]
EDITS = {(one.id, name): edit for one in SAMPLING for name, edit in one.variants.items()}
ROOT = Path(__file__).parents[3]
V, PROMPT = 60, [*range(30)]


class Rows:
    def __init__(self, found, own=True):
        self.found, self.own = found, own

    def rows(self, fed):
        return self.found, self.found[-1]


def answered(settings, edits=(), count=120, seed=1, own=True):
    """Return an answer of a port that says `settings` as if they were the reference's."""
    draw = np.random.default_rng(seed)
    rows = [3 * draw.standard_normal(V) for _ in range(count + 1)]
    sampler, answer = Sampler(settings, draw.random(count).tolist(), edits), []
    for at in range(count):
        answer.append(sampler.choose(Step(at, rows[at], rows[at - 1], PROMPT, answer[:])))
    said = replace(settings, semantics="lockstep")
    return Run(Rows(rows, own), PROMPT, answer, said, None)


def judged(run):
    found = Diagnosis()
    assert judge_drawn(run, SAMPLING, found)
    return found


def test_chances_by_hand():
    """Of 1/7, 2/7 and 4/7; a thousandth of all is any id, and what top-k cuts is no more."""
    rows = Rows([np.log([1.0, 2.0, 4.0])] * 3)
    run = Run(rows, [0], [0, 1, 2], Settings(1.0, top_k=2), None)
    found = likelihoods(run, [(), (EDITS["sampler-setting-ignored", "top-k"],)])
    parts = np.array([[0, 1 / 3, 2 / 3], [1 / 7, 2 / 7, 4 / 7]])
    np.testing.assert_allclose(np.exp(found.logs), (1 - STRAY) * parts + STRAY / 3, rtol=1e-12)
    assert found.inside.tolist() == [[False, True, True], [True, True, True]]
    idle = likelihoods(run, [(EDITS["sampler-setting-ignored", "min-p"],)])
    assert np.isneginf(idle.logs).all()  # off already


def test_all_chances_are_a_distribution():
    """By law: of every form that can act, the chances of all ids add up to 1."""
    logits = 2 * np.random.default_rng(0).standard_normal(12)
    settings = Settings(0.7, 6, 0.9, 0.02, repetition_penalty=1.4, presence_penalty=0.2)
    forms = [(one,) for one in EDITS.values()]
    total = np.zeros(len(forms))
    for id in range(12):
        run = Run(Rows([logits, logits[::-1]]), [3, 5], [id], settings, None)
        total += np.exp(likelihoods(run, forms).logs[:, 0])
    acting = total > 0
    np.testing.assert_allclose(total[acting], 1.0, rtol=1e-9)
    assert acting.sum() > 20


@pytest.mark.parametrize("said", [{}, {"top_k": 5, "top_p": 0.8}, {"presence_penalty": 1.0}])
def test_forms_are_asked_together_as_they_are_alone(said):
    """By law: what is the same with these settings is asked once, and its chances are its own."""
    run = answered(Settings(0.8, **said), count=4)
    known = [one for one in candidates(SAMPLING) if of_interest(one)]
    forms = [one.edits for one in right_samplers(known)] + [(one.edit,) for one in known]
    together = likelihoods(run, forms)
    alone = [likelihoods(run, [one]) for one in forms]
    np.testing.assert_array_equal(together.logs, np.concatenate([one.logs for one in alone]))
    np.testing.assert_array_equal(together.inside, np.concatenate([one.inside for one in alone]))
    made = [sampler_of(run, one) for one in forms]
    asked = {at for at, one in zip(firsts(made), made, strict=True) if one is not None}
    assert 10 < len(asked) < 0.7 * sum(one is not None for one in made)


def test_logits_are_sorted_once_for_all_rules(monkeypatch):
    """By law: without penalties there is one order of a row, and one of the row before."""
    sorts, sort = [], Candidates.best_first
    monkeypatch.setattr(Candidates, "best_first", lambda one: sorts.append(one) or sort(one))
    run = answered(Settings(0.8), count=1)
    sorts.clear()
    rules = [(one,) for one in EDITS.values() if one.step.startswith("rules")]
    likelihoods(run, [(), *rules])
    assert len(sorts) == 1 and len(rules) > 5


def test_right_samplers_that_cannot_draw_accuse_nobody():
    run = answered(Settings(1.0), count=20)
    rows = [np.full(V, 1e307) for _ in run.source.found]
    said = replace(run.settings, repetition_penalty=1e-6)
    found = Diagnosis()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not judge_drawn(replace(run, source=Rows(rows), settings=said), SAMPLING, found)
    assert not found.faults and not found.unexplained


@pytest.mark.parametrize("id", ["rep-penalty-sign", "rep-penalty-per-occurrence"])
def test_penalties_of_wide_logits_say_nothing(id):
    settings = Settings(1.0, repetition_penalty=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part = Sampler(settings, None, [EDITS[id, ""]]).parts["penalties"]
        found = part(np.array([1e307, -1.0]), [0] * 60 + [1] * 60, settings, 0)
    assert np.isposinf(found[0])


RIGHT = (Settings(0.8, top_k=20, top_p=0.9), Settings(0.7), Settings(1.3, top_p=0.8, min_p=0.05))


@sampled(1, "lockstep")
@pytest.mark.parametrize("engine", ["lockstep", "llama.cpp", "mlx-lm", "vllm"])
def test_right_answers_are_clean(engine):
    for seed, settings in enumerate(RIGHT):
        found = judged(answered(replace(settings, semantics=engine), count=60, seed=seed))
        assert found.verdict == "clean" and found.stages[0]["right"], (settings, found)
        assert "judged by their likelihood; 60 choices surprise by" in found.conventions[0]


@sampled(1, "temperature-misapplied-l T-settings0")
@pytest.mark.parametrize(
    ("id", "variant", "settings"),
    [
        ("temperature-misapplied", "l T", Settings(0.5)),
        ("temperature-misapplied", "l / T^2", Settings(2.0)),
        ("sampler-setting-ignored", "temperature, taken for 1", Settings(0.5)),
        ("sampler-setting-ignored", "temperature, taken for 0: greedy", Settings(0.5)),
        ("sampler-setting-ignored", "top-p", Settings(1.0, top_p=0.3)),
        ("top-p-excludes-crossing", "", Settings(0.5, top_p=0.7)),
        ("top-k-off-by-one", "one more", Settings(1.0, top_k=4)),
        ("top-k-off-by-one", "one fewer", Settings(1.0, top_k=2)),
        ("logits-of-an-earlier-row", "", Settings(1.0)),
        ("sampled-rank-as-id", "", Settings(1.0)),
        ("categorical-on-probs", "", Settings(1.0)),
        ("penalty-history-misaligned", "the answer left out", Settings(1.0, presence_penalty=2.5)),
    ],
)
def test_bugs_are_named(id, variant, settings):
    """By law: they were planted. Beside one there may be what is about as likely."""
    found = judged(answered(settings, [EDITS[id, variant]]))
    (bug,) = found.faults
    assert (bug.id, bug.variant) == (id, variant or None), found
    assert found.verdict == "faults" and not found.stages[0]["right"]
    assert bug.seen.startswith("120 choices, drawn with numbers that are not said; ")


@long
def test_a_bug_in_an_engine_of_ones_own():
    """llama.cpp's order is a note by itself; with it a multiplied temperature is named."""
    settings = Settings(2.0, top_k=12, top_p=0.7, semantics="llama.cpp")
    bug = EDITS["temperature-misapplied", "l T"]
    right, wrong = (judged(answered(settings, edits)) for edits in ([], [bug]))
    assert right.verdict == "clean" and "llama.cpp" in right.conventions[1]
    assert right.conventions[1].startswith("sampler-order-temperature: cuts at temperature 1")
    assert [one.id for one in wrong.faults] == ["temperature-misapplied"]
    assert "in an engine's order: top-k, typical, top-p, min-p, temp" in wrong.faults[0].seen


@long
def test_what_has_no_name_is_told_in_its_own_words():
    found = judged(answered(Settings(0.5), [hotter(2.8)], 400))
    assert found.verdict == "unknown" and found.faults == []
    assert "times as likely if the temperature were 2.5 times" in found.unexplained[0].shape


def test_few_choices_accuse_nobody():
    """By hand: one choice that cannot be drawn gains ln(1 / 3e-4 ...), which is too little."""
    run = answered(Settings(1.0, top_k=4), [EDITS["top-k-off-by-one", "one more"]], count=6)
    assert judged(run).verdict == "clean"
    assert needed(50) == pytest.approx(np.log(150 / RATE))


def test_which_of_equals_stays_is_nobodys_mistake():
    """By hand: k is 2 of three equals; the reference keeps ids 0 and 1, the port drew 2."""
    rows = [np.array([1.0, 1.0, 1.0, -1.0])] * 40
    settings = Settings(1.0, top_k=2)
    other = judged(Run(Rows(rows), [0], [2, 1] * 20, settings, None))
    assert other.verdict == "clean"
    third = judged(Run(Rows(rows), [0], [3, 1] * 20, settings, None))
    assert third.verdict != "clean"


def test_a_port_that_says_greedy_and_draws():
    run = answered(Settings(1.0))
    said = replace(run, settings=replace(run.settings, temperature=0.0))
    bug = drawn_anyway(said, SAMPLING)
    assert bug is not None and bug.id == "temperature-zero-samples"
    hot = answered(Settings(1.0), [hotter(4.0)])
    assert drawn_anyway(replace(hot, settings=said.settings), SAMPLING) is None


@long
def test_without_the_ports_logits_no_bug_is_named():
    """A bug of the model and one of the sampler look alike then."""
    run = answered(Settings(2.0), [EDITS["temperature-misapplied", "l / T^2"]], own=False)
    found = judged(run)
    assert found.verdict == "unknown"
    assert "temperature-misapplied would fit; dump the logits" in found.unexplained[0].shape


WARM = {"temperature": 1.0, "top_k": 5, **FREE}


@pytest.fixture(scope="module")
def model():
    return reference.load(MODEL)


@long
def test_a_dump_without_uniforms(model):
    """By law: drawn from the logits that are dumped; then with a top-k that was not said."""
    draw = np.random.default_rng(3)
    logits = [np.array(model.forward([TOKENS])[0])]
    answer = []
    for _ in range(60):
        powers = np.exp(logits[-1][-1].astype(np.float64))
        answer.append(int(draw.choice(len(powers), p=powers / powers.sum())))
        logits.append(np.array(model.forward([[*TOKENS, *answer]])[0, -1:]))
    rows = logits[:-1]
    bare = {**FREE, "temperature": 1.0}
    right = explain(model, dump(rows, decoded=answer[:-1], generated=answer, sampling=bare))
    assert right.verdict == "clean" and stages(right) == {"model": True, "sampling": True}
    said = {**bare, "top_k": 5}
    wrong = explain(model, dump(rows, decoded=answer[:-1], generated=answer, sampling=said))
    assert ids(wrong) == ["sampler-setting-ignored"] and wrong.faults[0].variant == "top-k"
    cold = explain(model, dump(rows, decoded=answer[:-1], generated=answer, sampling=FREE))
    assert cold.verdict != "clean"


def test_half_precision_without_logits_is_not_judged(model):
    with pytest.raises(InputError, match="half precision, from logits that were not dumped"):
        explain(model, dump(generated=[5, 6], sampling=WARM, dtype="bfloat16"))
    found = explain(model, dump(generated=[5], sampling=WARM, dtype="float32"))
    assert stages(found) == {"sampling": True} and "by their likelihood; 1" in found.conventions[-1]


@long
def test_the_page_has_the_rows_that_are_measured():
    """By law: its script makes them anew; of the cheapest cell the first answers are made here."""
    script = runpy.run_path(str(ROOT / "docs/measure_choices.py"))
    page, rounds = (ROOT / "docs/parity/choices.md").read_text("utf-8"), script["ROUNDS"]
    for engine, runs in script["RUNS"].items():
        assert f"| {engine} | {12 * runs * rounds} | 0 |" in page
    cells = rf" \d+ of {script['WRONG'] * rounds} \|" * len(script["COUNTS"])
    for id, variant, _ in script["PLANTED"]:
        name = f"`{id}`{', ' if variant else ''}{variant}"
        assert re.search(rf"^\| {re.escape(name)} \|{cells}$", page, re.MULTILINE), name
    greedy = "temperature, taken for 0: greedy"
    bug = [variant for _, variant, _ in script["PLANTED"]].index(greedy)
    found = [script["is_told"]("sampler-setting-ignored", one)
             for turn in range(3) for one in script["wrong_answers"](bug, 25, turn)]  # fmt: skip
    assert len(found) == 3 * script["WRONG"] and all(found)
    every = f"{script['WRONG'] * rounds} of {script['WRONG'] * rounds}"
    assert f"| `sampler-setting-ignored`, {greedy} | {every} |" in page


@pytest.mark.parametrize("given", [[], ["3"], ["3", "p.md"]])
def test_the_script_of_that_page_takes_rounds_and_a_page(given):
    script = runpy.run_path(str(ROOT / "docs/measure_choices.py"))
    expected = [int(given[0]) if given else script["ROUNDS"], script["PAGE"]]
    expected[1:] = [Path(one) for one in given[1:]] or expected[1:]
    assert [*vars(script["parsed"](given)).values()] == expected
