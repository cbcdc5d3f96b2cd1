"""What ranks in processes of their own write, by every decoder and from caches. By law."""

import json
import shutil

import pytest

from tests.diffusion_by_loop import checkpoint
from tests.parity.conftest import DEMO, lockstep, refuses  # noqa: F401

PROMPT = ("--prompt", "What is 2+2?", "--chat", "--backend", "mlx")
TWO = ("--tensor-parallel", 2)


@pytest.fixture
def written(lockstep, tmp_path):  # noqa: F811
    def run(*arguments):
        target = tmp_path / "out.json"
        said = lockstep("generate", *arguments, "--json", target)
        assert said.code == 0, said
        return json.loads(target.read_text())

    return run


@pytest.mark.parametrize("draft", ["lookup", DEMO])
def test_a_draft_runs_ahead_on_every_rank(written, draft):
    told = (DEMO, *PROMPT, "--decoder", "speculative", "--draft", draft)
    one, two = written(*told), written(*told, *TWO)
    assert (two["tokens"], two["decoder"]) == (one["tokens"], one["decoder"])


def test_diffusion_fills_the_same_places(written, tmp_path):
    (tmp_path / "model").mkdir()
    model = checkpoint(tmp_path / "model", "8B", seed=1, sharp=2.5, mask_token_id=39)
    told = (model, "--tokens", "3,1,4,1,5", "--decoder", "wedlm", "--max-tokens", 20)
    one, two = (written(*told, "--backend", "mlx", *more) for more in ((), TWO))
    assert (two["tokens"], two["decoder"]) == (one["tokens"], one["decoder"])


def test_ranks_save_and_load_their_heads(written, lockstep, refuses, tmp_path):  # noqa: F811
    files = tmp_path / "{rank}.safetensors"
    one = written(DEMO, *PROMPT, *TWO, "--save-cache", files)
    two = written(DEMO, *PROMPT, *TWO, "--load-cache", files)
    assert two["tokens"] == one["tokens"] and two["cached_tokens"] == one["prompt_tokens"] - 1
    first, second = (tmp_path / f"{rank}.safetensors" for rank in range(2))
    told = ("generate", DEMO, *PROMPT)
    refuses("'rank 0 of 2', but this is a whole model", *told, "--load-cache", first)
    kept = shutil.copy(second, tmp_path / "kept")
    shutil.copy(first, second)
    refuses("'rank 0 of 2', but this is rank 1 of 2", *told, *TWO, "--load-cache", files)
    written(
        DEMO, "--tokens", "7", "--max-tokens", 1, "--backend", "mlx", *TWO, "--save-cache", files
    )
    shutil.copy(kept, second)
    assert lockstep(*told, *TWO, "--load-cache", files).code == 2  # not of one text
