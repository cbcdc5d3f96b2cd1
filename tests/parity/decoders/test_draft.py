"""What a draft is given of the model's settings: its dtype, the chunks, and who may stop it."""

from types import SimpleNamespace

import pytest

from lockstep import fast, reference
from lockstep.parity.bench.decoders import Way, timed
from lockstep.parity.decoders.speculative import Speculative, loaded
from lockstep.parity.generating.generation import Generation
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from tests.parity.conftest import DEMO

SIDES = {
    "reference": reference.load,
    "cpu": lambda path, **more: fast.load(path, backend="cpu", **more),
    "mlx": lambda path, **more: fast.load(path, backend="mlx", **more),
}
STAGES = 6  # of a whole pass: embeddings, four layers, the head


@pytest.mark.parametrize(
    ("side", "dtype"),
    [("reference", "float64"), ("cpu", "float32"), ("mlx", "float16"), ("mlx", "float32")],
)
def test_a_draft_runs_as_the_model_does(side, dtype):
    """By law: in its dtype, whatever either is stored in, and on its backend."""
    model = SIDES[side](DEMO, dtype=dtype)
    draft = loaded(str(DEMO), model, ())
    assert type(draft) is type(model) and draft.dtype == dtype
    assert getattr(draft, "backend", None) is None or draft.backend.name == side


@pytest.mark.parametrize("side", SIDES)
def test_a_draft_can_be_stopped_and_reads_in_chunks(side):
    """By hand: of three tokens the second round drafts one, and its model reads the text anew."""
    model = SIDES[side](DEMO)
    for chunk, parts in ((None, 1), (4, 3), (3, 4)):
        one = Generation(model, SamplingOptions(), seeded(0), ignore_eos=True, chunk=chunk,
                         decoder=Speculative(str(DEMO), draft_tokens=3, ngram=1))  # fmt: skip
        told = []
        found = one.run(list(range(5, 16)), 3, lambda text: None,
                        stopped=lambda told=told: told.append(0))  # fmt: skip
        assert len(found["tokens"]) == 3
        prompt = (parts - 1) * (STAGES - 1) + STAGES  # eleven tokens, and twelve for the draft
        assert len(told) == prompt + prompt + STAGES


def fed_by(draft) -> list[int]:
    """Note how many tokens each pass of a draft is fed."""
    fed, stages = [], draft.stages

    def counted(tokens, **options):
        fed.append(len(tokens[0]))
        return stages(tokens, **options)

    draft.stages = counted
    return fed


@pytest.mark.parametrize("side", SIDES)
def test_a_draft_keeps_what_it_has_read_between_texts(side):
    """By law: the same text, tokens and counts as with a draft that begins anew; less is read."""
    model = SIDES[side](DEMO)
    texts = [list(range(5, 25)), [*range(5, 23), 40, 41, 42], [7, 8, 9]]
    found, fed = {}, {}
    for keeps in (True, False):
        one = Speculative(str(DEMO), draft_tokens=3, ngram=1)
        made = Generation(model, SamplingOptions(), seeded(3), ignore_eos=True, decoder=one)
        found[keeps], fed[keeps] = [], []
        for text in texts:
            one.reader = one.reader if keeps else None
            numbers = [] if one.loaded is None else fed_by(one.loaded)
            answer = made.run(text, 6, lambda piece: None)
            found[keeps].append((answer["tokens"], answer["decoder"]))
            fed[keeps].append(numbers[:1])
    assert found[True] == found[False]
    assert fed[False][1:] == [[len(texts[1]) + 1], [len(texts[2]) + 1]]  # one token is the model's
    assert fed[True][1:] == [[4], [4]]  # 18 are the same; and none


def test_a_draft_that_was_stopped_in_a_pass_begins_anew():
    """By law: whatever the stage, the next text is that of a draft that has read nothing."""
    model = SIDES["cpu"](DEMO)
    expected = None
    for calls in range(2 * STAGES + 1, 3 * STAGES, 2):
        one = Speculative(str(DEMO), draft_tokens=3, ngram=1)
        made = Generation(model, SamplingOptions(), seeded(3), ignore_eos=True, decoder=one)
        told = iter(range(999))
        torn = made.run(list(range(5, 25)), 9, lambda piece: None,
                        stopped=lambda told=told, calls=calls: next(told) == calls)  # fmt: skip
        assert torn["ended_by"] == "interrupted" and one.reader.torn
        after = made.run(list(range(5, 25)), 9, lambda piece: None)["tokens"]
        plain = Generation(model, SamplingOptions(), seeded(3), ignore_eos=True)
        expected = expected or plain.run(list(range(5, 25)), 9, lambda piece: None)["tokens"]
        assert after == expected


@pytest.mark.parametrize("side", SIDES)
def test_a_draft_with_windows_keeps_what_it_has_read(side):
    """Gemma 4 in miniature slides by 16 tokens; a draft's own cache drops none of them."""
    gemma = DEMO.parent / "gemma4"
    model = SIDES[side](gemma)
    one = Speculative(str(gemma), draft_tokens=3, ngram=1)
    made = Generation(model, SamplingOptions(), seeded(3), ignore_eos=True, decoder=one)
    made.run(list(range(5, 45)), 6, lambda piece: None)
    reader = one.kept_reader([5, 6, 7, 8, 9, 90])
    assert reader.held == [5, 6, 7, 8, 9] and reader.cache.positions.length == 5
    assert one.kept_reader([90, 91]) is None


@pytest.mark.parametrize("decoder", ["forgets", "keeps"])
def test_a_draft_that_forgets_reads_the_prompt_again(decoder):
    """By hand: what a run is timed with; else the draft would have read the prompt before."""
    model = SIDES["cpu"](DEMO)
    one = Speculative(str(DEMO), draft_tokens=3, ngram=1)
    prompt = SimpleNamespace(text=None, tokens=lambda tokenizer: list(range(5, 25)))
    timed(model, prompt, Way("", one), 6)
    fed = fed_by(one.loaded)
    if decoder == "forgets":
        timed(model, prompt, Way("", one), 6)
        assert fed[0] == 21
    else:
        Generation(model, SamplingOptions(), iter(()), ignore_eos=True, decoder=one).run(
            prompt.tokens(None), 6, lambda piece: None
        )
        assert fed[0] == 2
