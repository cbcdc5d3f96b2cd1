"""Speculative decoding on tables of probabilities, where all that can happen is gone through.

By loop: every number that a sampler may be given falls in one of four quarters here, for all
probabilities are quarters, halves and wholes. So every run is made once, with its probability, and
the texts have exactly the model's distribution. On random tables a G-test says so.
"""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.fast.backends.cpu import CpuBackend
from lockstep.fast.decoding import speculative as fast_speculative
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding import speculative
from lockstep.reference.scheduling.prompt_lookup import LookupDraft
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.scheduling.speculating import Speculated, speculate
from tests.sampled import sampled

PACKAGES = pytest.mark.parametrize("package", [speculative, fast_speculative],
                                   ids=["reference", "fast"])  # fmt: skip
DRAWN = SamplingOptions(1.0)
QUARTERS = np.array([
    [2, 1, 1, 0], [1, 2, 0, 1], [1, 1, 1, 1], [2, 2, 0, 0], [0, 0, 4, 0], [0, 2, 2, 0],
]) / 4  # fmt: skip
HALVES = np.array([[1, 1, 0, 0], [0, 1, 0, 1], [2, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]) / 2


class TableCache:
    """Holds tokens, and counts the forward passes."""

    name = "table"

    def __init__(self):
        self.tokens = []
        self.fed = []
        self.positions = self

    @property
    def length(self):
        return len(self.tokens)

    def trim(self, count):
        assert 0 <= count <= self.length
        del self.tokens[self.length - count :]

    def arrays(self):
        return []


class Table:
    """A model whose distribution after a text is a row of a table: by the sum of its tokens."""

    checkpoint = SimpleNamespace(path=Path("table"))
    backend = CpuBackend("float32")

    def __init__(self, rows, shift=0):
        self.rows, self.shift = np.asarray(rows), shift
        self.config = SimpleNamespace(
            vocab_size=self.rows.shape[1], num_hidden_layers=0, max_position_embeddings=99
        )

    def make_cache(self):
        return TableCache()

    def after(self, text):
        return self.rows[(sum(text) + len(text) + self.shift) % len(self.rows)]

    def stages(self, tokens, *, cache, last_only=False):
        rows = []
        for token in tokens[0]:
            cache.tokens.append(token)
            rows.append(self.after(cache.tokens))
        cache.fed.append(list(tokens[0]))
        yield "model.embed_tokens", None
        with np.errstate(divide="ignore"):
            logits = np.log(np.array(rows))[None].astype(np.float32)
        yield "logits", logits[:, -1:] if last_only else logits


class Drawing:
    """Numbers chosen from outside: the middle of a quarter each. Knows if more were wanted."""

    def __init__(self, quarters):
        self.quarters, self.taken = quarters, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.taken == len(self.quarters):
            raise Unsaid
        self.taken += 1
        return (self.quarters[self.taken - 1] + 0.5) / 4


class Unsaid(Exception):
    """A number was asked for that nobody has chosen yet."""


def every_text(run) -> dict[tuple, float]:
    """Go through all that chance can do; return the probability of each text."""
    found, open_ends = {}, [()]
    while open_ends:
        quarters = open_ends.pop()
        try:
            text = tuple(run(Drawing(quarters)))
        except Unsaid:
            open_ends += [(*quarters, one) for one in range(4)]
            continue
        found[text] = found.get(text, 0) + 4.0 ** -len(quarters)
    return found


def exactly(model, prompt, count) -> dict[tuple, float]:
    """Return the probability of each text by multiplication."""
    texts = {(): 1.0}
    for _ in range(count):
        texts = {
            (*text, token): mass * share
            for text, mass in texts.items()
            for token, share in enumerate(model.after([*prompt, *text]))
            if share
        }
    return texts


def drafted_by(package, model, sampling, uniforms, kind):
    if kind == "lookup":
        return LookupDraft(vocabulary=model.config.vocab_size, longest=2)
    return package.ModelDraft(kind, vocabulary=model.config.vocab_size, sampling=sampling,
                              uniforms=uniforms)  # fmt: skip


def run(package, model, kind, uniforms, *, prompt, count, ahead, counts=None, sampling=DRAWN):
    return package.generate(
        model, prompt, draft=drafted_by(package, model, sampling, uniforms, kind),
        draft_tokens=ahead, max_tokens=count, stop=(), sampling=sampling, uniforms=uniforms,
        counts=counts,
    )  # fmt: skip


@sampled(2, "long-fast")
@PACKAGES
@pytest.mark.parametrize(
    ("rows", "kind", "ahead", "count"),
    [
        (QUARTERS, Table(QUARTERS, 1), 1, 3),
        (QUARTERS, Table(QUARTERS[::-1]), 2, 4),
        (HALVES, "lookup", 2, 4),
        (HALVES, "lookup", 3, 5),
    ],
    ids=["short", "other", "lookup", "long"],
)
def test_every_text_has_exactly_the_models_probability(package, rows, kind, ahead, count):
    """A draft that is certain, a looked up one, leaves thirds of quarters: so halves are for it."""
    model, prompt = Table(rows), [0, 1, 2, 0, 1]
    found = every_text(
        lambda numbers: run(package, model, kind, numbers, prompt=prompt, count=count, ahead=ahead)
    )
    expected = exactly(model, prompt, count)
    assert len(expected) >= 6 and math.isclose(sum(found.values()), 1)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("wrong", ["keeps all", "draws from p"])
def test_a_wrong_rule_is_noticed_by_this(monkeypatch, wrong):
    def rule(drafted, draft, target, uniforms):
        for place, (token, q, p) in enumerate(zip(drafted, draft, target, strict=False)):
            kept = 1.0 if wrong == "keeps all" else p[token] / q[token]
            if kept >= 1 or (kept > 0 and next(uniforms) < kept):
                continue
            return [*drafted[:place], speculative.drawn(p, uniforms)]
        return [*drafted, speculative.drawn(target[len(drafted)], uniforms)]

    monkeypatch.setattr(speculative.RULES, "verified", rule)
    model, other = Table(QUARTERS), Table(QUARTERS, 1)
    found = every_text(
        lambda numbers: run(speculative, model, other, numbers, prompt=[0], count=3, ahead=1)
    )
    expected = exactly(model, [0], 3)
    assert max(abs(found.get(key, 0) - expected.get(key, 0)) for key in found) > 0.01


@sampled(0)
@PACKAGES
def test_random_tables_pass_a_g_test(package):
    """By law: 3000 texts of three tokens, with and without top-p; 1e-4 of such tests would fail."""
    rng = np.random.default_rng(8)
    model, other = (Table(rng.dirichlet(np.ones(5), 7)) for _ in range(2))
    for kind, sampling in ((other, DRAWN), ("lookup", SamplingOptions(0.7, top_p=0.9))):
        numbers, seen = seeded(4), np.zeros((5, 5, 5))
        for _ in range(3000):
            text = run(package, model, kind, numbers, prompt=[1, 3], count=3, ahead=2,
                       sampling=sampling)  # fmt: skip
            seen[tuple(text)] += 1
        expected = joint(model, sampling) * 3000
        assert not seen[expected == 0].any()
        common = expected >= 5  # the rest is one cell
        found = np.append(seen[common], seen[~common].sum())
        wanted = np.append(expected[common], max(expected[~common].sum(), 1e-9))
        g = 2 * np.sum(found[found > 0] * np.log(found[found > 0] / wanted[found > 0]))
        free = common.sum()
        assert g < free + 3.72 * math.sqrt(2 * free) + 10, (g, free)


def joint(model, sampling) -> np.ndarray:
    """Return the probability of each text of three tokens after 1, 3."""
    out = np.zeros((5, 5, 5))
    for text in np.ndindex(5, 5, 5):
        mass, before = 1.0, [1, 3]
        for token in text:
            with np.errstate(divide="ignore"):
                logits = np.log(model.after(before))
            mass *= speculative.probabilities(logits, sampling)[token]
            before = [*before, token]
        out[text] = mass
    return out


@PACKAGES
def test_what_is_fed_and_counted_by_hand(package):
    """The model says 1 2 3 0 1 2 3 0 ... whatever was said; the draft is wrong about 3."""
    turn = Table(np.roll(np.eye(4), 1, axis=1))
    turn.after = lambda text: np.eye(4)[(text[-1] + 1) % 4]
    draft = Table(np.eye(4))
    draft.after = lambda text: np.eye(4)[{0: 1, 1: 2, 2: 0, 3: 0}[text[-1]]]
    counts, cache = Speculated(), TableCache()
    made = package.generate(
        turn, [3, 0], draft=drafted_by(package, turn, SamplingOptions(), iter(()), draft),
        draft_tokens=3, max_tokens=9, stop=(), sampling=SamplingOptions(), uniforms=iter(()),
        cache=cache, counts=counts,
    )  # fmt: skip
    assert list(made) == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert cache.fed == [[3, 0], [1, 2, 0, 1], [3, 0, 1, 2], [3, 0]]
    assert counts.forwards == len(cache.fed) and counts.made == 9
    assert counts.drafted == sum(len(fed) - 1 for fed in cache.fed[1:])
    assert counts.accepted == 9 - counts.forwards


@PACKAGES
def test_a_draft_reads_the_prompt_in_chunks_and_tells_its_stages(package):
    """By hand: four tokens of prompt, the model's first one, and then its own."""
    told, draft = [], Table(QUARTERS)
    drafts = package.ModelDraft(draft, vocabulary=4, sampling=SamplingOptions(), uniforms=iter(()),
                                chunk=2, watch=told.append)  # fmt: skip
    first, second = drafts.propose([0, 1, 2, 3, 0], 2)
    assert drafts.reader.cache.fed == [[0, 1], [2, 3], [0], [first]]
    assert told == ["model.embed_tokens"] * 2 + ["model.embed_tokens", "logits"] * 2
    assert second == draft.after([0, 1, 2, 3, 0, first]).argmax()


@PACKAGES
def test_a_right_draft_is_kept_whole(package):
    model = Table(QUARTERS)
    counts = Speculated()
    list(run(package, model, model, seeded(1), prompt=[0, 1], count=10, ahead=2, counts=counts))
    assert (counts.accepted, counts.drafted) == (6, 6)  # 1, then thrice 2 and one more
    assert (counts.forwards, counts.made) == (4, 10)


@PACKAGES
def test_a_draft_that_cannot_read_the_text_proposes_nothing(package):
    """By hand: an id that it has not, or a context that is full."""
    for vocabulary, context, prompt in ((2, 99, [3, 1]), (4, 3, [1, 1])):
        draft = Table(np.full((1, vocabulary), 1 / vocabulary))
        draft.config.max_position_embeddings = context
        counts = Speculated()
        made = run(package, Table(QUARTERS), draft, seeded(0), prompt=prompt, count=4, ahead=2,
                   counts=counts)  # fmt: skip
        assert len(list(made)) == 4 and counts.drafted == 0


@PACKAGES
def test_drafts_with_another_number_of_rows_are_fitted(package):
    """By law: rows behind the last token change nothing; the distribution stays the model's."""
    model = Table(QUARTERS)
    wide = Table(np.concatenate([QUARTERS / 2, np.full((6, 2), 0.25)], axis=1), 1)
    narrow = Table(np.array([[2, 2]]) / 4)
    for draft in (wide, narrow):
        found = every_text(
            lambda numbers, draft=draft: run(
                package, model, draft, numbers, prompt=[0], count=3, ahead=1
            )
        )
        assert found == pytest.approx(exactly(model, [0], 3), abs=1e-12)


def test_rounds_by_hand():
    """A stop token ends a round, what came after it is not there; the last round is a short one."""
    asked = []

    def propose(text, count):
        asked.append(count)
        return [7] * count

    def judge(text, drafted):
        return [*drafted, 8]

    counts = Speculated()
    rounds = {"propose": propose, "judge": judge, "draft_tokens": 3, "longest": None}
    made = speculate([1], **rounds, max_tokens=7, stop={9}, counts=counts)
    assert list(made) == [8, 7, 7, 7, 8, 7, 8] and asked == [3, 1]
    assert counts == Speculated(forwards=3, drafted=4, accepted=4, made=7)
    counts = Speculated()
    assert list(speculate([1], **rounds, max_tokens=9, stop={7}, counts=counts)) == [8, 7]
    assert counts == Speculated(forwards=2, drafted=3, accepted=1, made=2)
    asked.clear()
    short = rounds | {"longest": 5}  # with the draft; a text of 5 is gone on with token by token
    made = list(speculate([1], **short, max_tokens=8, stop=(), counts=Speculated()))
    assert made == [8, 7, 7, 7, 8, 8, 8, 8] and asked == [3]
    for none in (0, -1, -7):
        made = list(speculate([1], **rounds, max_tokens=none, stop={7}, counts=Speculated()))
        assert made == []
    asked.clear()
    told = Speculated(forwards=5)  # somebody counts several texts: each one's first round is plain
    assert list(speculate([1], **rounds, max_tokens=3, stop=(), counts=told)) == [8, 7, 8]
    assert asked == [1] and told.forwards == 7


@PACKAGES
def test_an_empty_prompt_is_refused(package):
    with pytest.raises(InputError, match="the prompt has no tokens"):
        list(run(package, Table(QUARTERS), "lookup", iter(()), prompt=[], count=2, ahead=1))


@PACKAGES
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_stop_it(package, value):
    model = Table(np.full((1, 4), 1.0))
    model.after = lambda text: np.array([1, value, 1, 1])
    for sampling in (SamplingOptions(), DRAWN):
        with pytest.raises(InputError, match="but should be finite"):
            list(run(package, model, "lookup", seeded(0), prompt=[1], count=2, ahead=1,
                     sampling=sampling))  # fmt: skip
