"""What a draft is given of the model's settings: its dtype, the chunks, and who may stop it."""

import pytest

from lockstep import fast, reference
from lockstep.parity.decoders.speculative import Speculative, loaded
from lockstep.parity.generating import Generation
from lockstep.parity.uniforms import seeded
from lockstep.reference.tokenizer.sampling_options import SamplingOptions
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
