"""Speculative decoding where a model stops saying numbers, which ends a text as it does without."""

import numpy as np
import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.prompt_lookup import LookupDraft
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.scheduling.speculating import Speculated
from tests.reference.decoding.test_speculative import PACKAGES, QUARTERS, Table, every_text, run
from tests.sampled import sampled


class Dying(Table):
    """Says no number once the text has a 3; `spoils` rows before it in a pass too."""

    def __init__(self, rows, *, spoils):
        super().__init__(rows)
        self.spoils = spoils

    def after(self, text):
        row = super().after(text)
        return row * np.nan if 3 in text else row

    def stages(self, tokens, **options):
        for name, value in super().stages(tokens, **options):
            spoilt = self.spoils and value is not None and np.isnan(value).any()
            yield name, value * np.nan if spoilt else value


def until_it_dies(tokens):
    """Yield the tokens, and an x in the place of an error."""
    try:
        yield from tokens
    except InputError:
        yield "x"


def with_deaths(model, prompt, count):
    """Return the probability of each text by multiplication: after a 3 there is no more."""
    texts = {(): 1.0}
    for _ in range(count):
        new = {}
        for text, mass in texts.items():
            if 3 in text:
                new[text if text[-1] == "x" else (*text, "x")] = mass
                continue
            for token, share in enumerate(model.after([*prompt, *text])):
                if share:
                    new[*text, token] = mass * share
        texts = new
    return texts


@sampled(0)
@PACKAGES
@pytest.mark.parametrize("spoils", [False, True])
def test_a_text_dies_where_it_would_without_a_draft(package, spoils):
    """By loop: what is not a number behind a token that is refused is not seen; else it counts."""
    model, draft = Dying(QUARTERS, spoils=spoils), Table(QUARTERS, 1)
    for ahead, count in ((1, 3), (2, 4)):
        found = every_text(
            lambda numbers, ahead=ahead, count=count: until_it_dies(
                run(package, model, draft, numbers, prompt=[0], count=count, ahead=ahead)
            )
        )
        expected = with_deaths(model, [0], count)
        assert {3, 4, 5} & {len(text) for text in expected if text[-1] == "x"}
        assert found == pytest.approx(expected, abs=1e-12)


@PACKAGES
@pytest.mark.parametrize("spoils", [False, True])
@pytest.mark.parametrize("sampling", [SamplingOptions(), SamplingOptions(presence_penalty=0.01)])
def test_a_draft_that_is_refused_may_be_followed_by_anything(package, spoils, sampling):
    """By hand: the model says 2, 0, 2, 0 ... and is offered 3."""
    model = Dying(np.eye(4), spoils=spoils)
    model.rows = np.array([[0.1, 0, 0.6, 0.3], [0.6, 0, 0.1, 0.3]])
    model.after = lambda text: model.rows[text[-1] // 2] * (np.nan if 3 in text else 1)
    counts, offered = Speculated(), LookupDraft(vocabulary=4, longest=1)

    def offer(text, count):
        offered.shares = [np.eye(4)[3]] * count
        return [3] * count

    offered.propose = offer
    made = package.generate(model, [0], draft=offered, draft_tokens=2, max_tokens=5, stop=(),
                            sampling=sampling, uniforms=iter(()), counts=counts)  # fmt: skip
    assert list(made) == [2, 0, 2, 0, 2] and counts.accepted == 0 < counts.drafted
