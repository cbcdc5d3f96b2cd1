"""WeDLM's decoder, with transformers' layers under the loop of its description. By witness, live.

transformers knows no reordering, but takes a mask and positions of any kind: the triangle over the
row as it stands, and the positions of the text.
"""

import json

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep import fast, reference
from lockstep.fast.decoding import diffusion as fast_diffusion
from lockstep.fast.decoding import sampling as fast_sampling
from lockstep.reference.decoding import diffusion as reference_diffusion
from lockstep.reference.decoding import sampling as reference_sampling
from lockstep.reference.scheduling.diffusion_options import VARIANTS, DiffusionOptions
from tests.diffusion_by_loop import BUILDS, Settings, checkpoint, simulated
from tests.witnesses import build

PROMPT, MASK, MOST = [3, 1, 4, 1, 5, 9, 2], 39, 24
FAMILY = {"8B": "qwen3", "7B": "qwen2"}


@pytest.fixture(params=BUILDS)
def which(request):
    return request.param


@pytest.fixture
def folder(which, tmp_path):
    return checkpoint(tmp_path / which, which, seed=1, sharp=2.5)


def witness(folder, which):
    """Return transformers' model of the same tensors, as one of tokens and positions in a row."""
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    keys = {key: value for key, value in stored.items() if key not in ("model_type", "qk_norm")}
    chosen = AutoConfig.for_model(FAMILY[which], **keys, attn_implementation="eager")
    model = AutoModelForCausalLM.from_config(chosen, dtype=torch.float32).eval()
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    rest = model.load_state_dict(build.dequantized(folder, shapes))
    assert not rest.missing_keys and not rest.unexpected_keys

    @torch.no_grad()
    def score(tokens, positions):
        size = len(tokens)
        seen = torch.full((size, size), torch.finfo(torch.float32).min).triu(1)[None, None]
        row, places = torch.tensor([tokens]), torch.tensor([positions])
        return model(row, attention_mask=seen, position_ids=places).logits[0].numpy()

    return score


@pytest.mark.parametrize("engine", ["reference", "mlx", "cpu"])
def test_reordered_tokens(folder, which, engine, judge):
    """Masks behind known tokens, each at its own position, after a cached beginning."""
    model = reference.load(folder) if engine == "reference" else fast.load(folder, backend=engine)
    known, places = [7, 8, 9], [12, 9, 15, 7, 8, 10, 11, 13, 14]
    tokens = [*known, *[MASK] * 6]
    expected = witness(folder, which)(PROMPT + tokens, [*range(7), *places])
    cache = model.make_cache()
    model.forward([PROMPT], cache=cache)
    found = model.forward([tokens], cache=cache, positions=np.array([places]), reordered=True)
    judge(engine, f"reordered, {which}", np.array(found)[0].astype(np.float64), expected[7:])


@pytest.mark.parametrize("way", VARIANTS)
@pytest.mark.parametrize("threshold", [None, 0.4, 1.5])
def test_whole_texts(folder, which, way, threshold):
    own = VARIANTS[way]
    port = own.extends
    rules = Settings(MASK, 8, threshold, 0.02, own.penalty == "window", 1.0, own.floor, port)
    text, runs = simulated(witness(folder, which), PROMPT, rules, most=MOST)
    assert len(set(text)) > 2
    chosen = DiffusionOptions(MASK, own, 8, threshold, 0.02, own.penalty)
    for engine in ("reference", "mlx", "cpu"):
        plain = engine == "reference"
        model = reference.load(folder) if plain else fast.load(folder, backend=engine)
        steps = []
        made = (reference_diffusion if plain else fast_diffusion).generate(
            model, PROMPT, options=chosen, room=64, max_tokens=MOST, stop=(),
            choose=(reference_sampling if plain else fast_sampling).greedy, told=steps.append,
        )  # fmt: skip
        assert list(made) == text
        assert [list(step.positions) for step in steps] == runs
