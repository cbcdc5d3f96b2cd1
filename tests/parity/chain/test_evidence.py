"""What is accused, and on what evidence: lengths, echoes, few choices, near borders. By hand."""

from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.chain import looping
from lockstep.parity.chain.choosing import BEFORE, FORMS, settings_of, too_few
from lockstep.parity.chain.fitting import Fit, best_fit, candidates
from lockstep.parity.chain.looping import echoes
from lockstep.parity.chain.replay import Run
from lockstep.parity.chain.rows import MOST, OwnRows
from lockstep.parity.chain.said import said_by
from lockstep.parity.chain.sampler import Sampler, Settings, Step
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explain import explain
from lockstep.parity.faults.around import mistakes
from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.parity.faults.sampling.penalties import divided, each_time
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.chain.test_choices import MODEL, TOKENS, dump, ids, stages
from tests.parity.conftest import DEMO

OFF = "max-tokens-off-by-one"


@pytest.fixture(scope="module")
def model():
    return reference.load(MODEL)


@pytest.fixture(scope="module")
def rows(model):
    """The logits of a greedy run, and its choices: 5 steps behind the prompt."""
    fed, found = [*TOKENS], []
    for _ in range(6):
        found.append(model.forward([fed])[0])
        fed.append(int(found[-1][-1].argmax()))
    return found, fed[len(TOKENS) :]


def test_a_stop_id_may_be_kept_back(model, rows, monkeypatch):
    """The fourth choice ends the text; the port hands three out, of four that it may."""
    logits, answer = rows
    monkeypatch.setattr(looping, "stop_ids", lambda model: {answer[3]})
    said = {"generated": answer[:3], "sampling": {"max_new_tokens": 4}}
    for port in (dump(**said), dump(logits[:4], decoded=answer[:3], **said)):
        found = explain(model, port)
        assert (found.verdict, ids(found)) == ("clean", [])
        assert any("is not handed out" in line for line in found.conventions)
    unseen = explain(model, dump(logits[:3], decoded=answer[:2], **said))
    assert unseen.verdict == "clean" and any("is not known" in x for x in unseen.conventions)
    monkeypatch.setattr(looping, "stop_ids", lambda model: {answer[5]})
    assert ids(explain(model, dump(**said))) == [OFF]


def test_what_was_fed_lacks_the_last_id(model, rows):
    logits, answer = rows
    port = dump(logits[:3], decoded=answer[:2], sampling={"max_new_tokens": 3})
    found = explain(model, port)
    assert found.verdict == "clean" and stages(found)["sampling"] is True


class Source:
    """Rows with one best id each."""

    own = True

    def __init__(self, *best, width=9):
        self.found = [5.0 * (np.arange(width) == one) for one in best]

    def rows(self, fed):
        return self.found, None


def run(source, tokens, answer, settings=None, uniforms=None):
    return Run(source, tokens, answer, settings or Settings(), uniforms)


def test_an_answer_may_begin_as_its_prompt():
    assert not echoes(run(Source(5, 6, 7), [5], [5, 6, 7]))
    assert echoes(run(Source(6, 7, 8), [5], [5, 6, 7]))
    assert not echoes(run(Source(1, 2, 3), [5], [5, 6, 7]))  # neither is what was chosen
    warm = Settings(temperature=1.0)
    assert not echoes(run(Source(6, 7), [5], [5, 6, 7], warm))
    assert echoes(run(Source(6, 7), [5, 4], [5, 4, 6, 7], warm))


def rows_of_one_in(width, count):
    return run(Source(*[0] * count, width=width), [1], [2] * count)


def test_few_choices_are_no_evidence():
    """A choice that the sampler would not make is one of all ids: ln 9 each, and ln 1e4 is 9.2."""
    one = candidates([mistake("a")])[0]
    alone, pair = best_of(one), best_of(one, one)
    assert too_few(rows_of_one_in(9, 4), alone) and not too_few(rows_of_one_in(9, 5), alone)
    assert too_few(rows_of_one_in(9, 5), pair) and not too_few(rows_of_one_in(9, 6), pair)
    assert too_few(rows_of_one_in(50_000, 2), alone)  # unlikely, but only two


def test_the_forms_are_no_more_than_are_reckoned_with():
    assert 20 < sum(one.edit.step not in BEFORE for one in candidates(mistakes())) <= FORMS


def best_of(*which):
    return Fit(which, ((),) * len(which), None)


def test_a_port_of_another_generator_has_no_mistake(model):
    """By law: the reference's sampler, with other random numbers than those that are said."""
    from lockstep.reference.decoding.sampling import sample
    from lockstep.reference.scheduling.sampling_options import SamplingOptions

    warm, row = SamplingOptions(temperature=1.0, top_k=6), model.forward([TOKENS])[0, -1]
    for seed in range(12):
        said, drawn = np.random.default_rng(seed).random(2)
        port = dump(
            generated=[sample(row, warm, uniform=drawn)], uniforms=[said],
            sampling={"temperature": 1.0, "top_k": 6},
        )  # fmt: skip
        assert ids(explain(model, port)) == [], seed


def mistake(id):
    """Return a mistake that adds its own letter."""
    return Mistake(id, "", "", "", "decoded", "", {"": Edit(id, lambda run, _: None)})


def test_pairs_that_share_nothing_are_ties():
    right = {"ab": 0.0, "cd": 0.0}
    fit = best_fit(
        candidates([mistake(id) for id in "abcd"]),
        lambda edits: "".join(edit.step for edit in edits) or "-",
        lambda made: right.get(made, 1.0),
        together=lambda one, other: True,
    )
    assert fit is not None and [one.mistake.id for one in fit.chosen] == ["a", "b"]
    assert fit.ties == (("c", "d"), ("c", "d"))


def test_all_ids_near_the_border_are_near():
    """Probabilities 0.499, 0.001, 0.001, 0.499: u = 0.5 +- 0.005 reaches each of them."""
    step = Step(0, np.log([0.499, 0.001, 0.001, 0.499, 1e-300]), None, [0], [])
    sampler = Sampler(Settings(temperature=1.0), [0.5], ())
    assert [sampler.may_draw(step, id, 0.005) for id in range(5)] == [True] * 4 + [False]
    assert [sampler.may_draw(step, id, 1e-9) for id in range(4)] == [False, True, True, False]
    cut = Sampler(Settings(temperature=1.0, top_k=2), [0.5], ())
    assert not cut.may_draw(step, 1, 0.1) and not cut.may_draw(step, 9, 0.1)


def test_drawing_without_a_temperature_is_at_one():
    """As in transformers."""
    for said, wanted in (({"do_sample": True}, 1.0), ({}, 0.0), ({"do_sample": False}, 0.0),
                         ({"do_sample": True, "temperature": 0.5}, 0.5)):  # fmt: skip
        assert settings_of(said_by(dump(generated=[1], sampling=said))).temperature == wanted


WARM = {"temperature": 1.0, "ignore_eos": True}


def test_what_cannot_be_judged_leaves_the_tensors_their_diagnosis(model, rows):
    logits, answer = rows
    said = {"decoded": answer[:-1], "generated": answer, "sampling": WARM}
    found = explain(model, dump(logits, **said, uniforms=[0.0, 0.0]))
    assert found.compared and any("first 2 of 6" in line for line in found.conventions)
    infinite = [one.copy() for one in logits]
    infinite[2][-1, 3] = np.inf
    found = explain(model, dump(infinite, **said, uniforms=[0.5] * 6), faults=())
    assert (
        found.compared
        and next(one["compared"] for one in found.stages if one["stage"] == "sampling") == 5
    )


def test_a_prompt_of_nothing_leaves_the_tensors_their_diagnosis():
    demo = reference.load(DEMO)
    found = explain(demo, dump([demo.forward([[5, 6]])[0]], tokens=[5, 6], prompt=""))
    assert found.verdict == "clean" and found.compared
    assert "token ids are not judged" in found.conventions[0]
    with pytest.raises(InputError, match="the prompt has no tokens"):
        explain(demo, dump(tokens=[5, 6], prompt=""))


def test_rows_are_read_once_and_no_more_than_are_judged():
    names = ["logits", *(f"step.{n}/logits" for n in range(1, MOST + 40))]
    read = []

    def logits(name):
        read.append(name)
        return np.full((1, 1, 3), len(read), np.float32)

    port = Dump(Path("port"), dict.fromkeys(names, (1, 1, 3)), logits)
    own = OwnRows(port, 3, mapped={}, cap=None)
    for _ in range(3):
        found, before = own.rows([])
    assert read == names[:MOST] and len(found) == MOST and before is None
    assert [None if row is None else row[0] for row in found] == [*range(1, MOST + 1)]


@pytest.mark.parametrize(
    ("core", "said"),
    [
        ("token id 18446744073709551616 of generated, but should", {"generated": [2**64, 5]}),
        ("of generated, but should be 0..", {"generated": [10**6, 5]}),
        ("of decoded, but should be 0..", {"decoded": [10**6]}),
        ("of tokens, but should be below", {"tokens": [2**64], "generated": [5]}),
        ("chat may not give its template 'messages'", {"chat": {"messages": []}, "prompt": "a"}),
        ("chat may not give its template 'self'", {"chat": {"self": 1}, "prompt": "a"}),
    ],
)
def test_odd_words_are_refused(core, said, model):
    said = {"sampling": {"repetition_penalty": 1.2}, **said}
    with pytest.raises(InputError, match=core.replace(".", r"\.")):
        explain(model, dump(**said))


def test_penalties_pass_over_ids_without_a_logit():
    """By hand: of two ids the second was there, and is halved."""
    step = Step(0, np.array([2.0, 4.0]), None, [1, 7], [9])
    for wrong in (None, divided, each_time):
        edits = [] if wrong is None else [Edit("penalties", lambda right, s, wrong=wrong: wrong)]
        sampler = Sampler(Settings(repetition_penalty=2.0), None, edits)
        assert sampler.lowered(step).tolist() == [2.0, 2.0]
