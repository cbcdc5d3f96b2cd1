"""Models that transformers stored, against transformers itself in float32. By witness, live."""

import numpy as np
import pytest

from tests.peers.conftest import Drawn, draw_config
from tests.witnesses import build
from tests.witnesses.judge import same_tokens
from tests.witnesses.runners import ENGINES, Runner

FUSED = "mlp.act_fn"
SLIDING = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
KINDS = {
    "plain": {},
    "biased": {"attention_bias": True},
    "sliding": SLIDING,
    "biased and sliding": {"attention_bias": True} | SLIDING,
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def drawn(kind, tied, storage, seed_for, tmp_path) -> Drawn:
    seed = seed_for("stored", kind, tied, storage)
    config = draw_config(seed) | KINDS[kind] | {"tie_word_embeddings": tied}
    folder = build.save(
        build.random_model(seed, **config),
        tmp_path / "model",
        dtype=storage,
        shard="100KB" if seed % 2 else None,
        old_spelling=seed % 4 > 1,
    )
    return Drawn(folder, build.prompts(seed, config["vocab_size"]))


def test_logits(drawn, kind, engine, judge):
    expected = build.logits(build.truth(drawn.folder), drawn.tokens)
    sdpa = build.logits(build.truth(drawn.folder, attention="sdpa"), drawn.tokens)
    runner = Runner(engine, drawn.folder)
    found = runner.logits(drawn.tokens)
    judge(engine, f"{kind}, eager", found, expected)
    judge(engine, f"{kind}, sdpa", found, sdpa)
    judge(engine, f"{kind}, chunks", runner.chunked(drawn.tokens, [7, 1, 31, 1]), expected)
    judge(engine, f"{kind}, one by one", runner.chunked(drawn.tokens, [1] * 40), expected)


def test_modules(drawn, engine, judge):
    expected = build.activations(build.truth(drawn.folder), drawn.tokens)
    found = Runner(engine, drawn.folder).taps(drawn.tokens)
    hidden = {name for name in expected if name.endswith(FUSED) and engine != "reference"}
    assert len(expected) > 2 * 11
    for name in expected.keys() - hidden:
        judge(engine, "modules", found[name], expected[name])


def test_greedy(drawn):
    model, lengths = build.truth(drawn.folder), [build.PROMPT, build.SHORT]
    ids, seen = build.greedy(model, drawn.tokens)
    unequal_ids, unequal_seen = build.greedy_unequal(model, drawn.tokens)
    for engine in ENGINES:
        runner = Runner(engine, drawn.folder)
        same_tokens(runner.greedy(drawn.tokens, build.GREEDY)[0], ids, seen)
        found, _ = runner.greedy(drawn.tokens, build.GREEDY, lengths=lengths)
        same_tokens(found, unequal_ids, unequal_seen)


def test_positions_with_gaps(tied, storage, seed_for, engine, judge, tmp_path):
    seed = seed_for("gaps", tied, storage)
    config = draw_config(seed) | {"tie_word_embeddings": tied}
    folder = build.save(build.random_model(seed, **config), tmp_path / "model", dtype=storage)
    tokens = build.prompts(seed, config["vocab_size"])
    positions = np.random.default_rng(seed).integers(1, 6, tokens.shape).cumsum(axis=1)
    expected = build.logits_at(build.truth(folder), tokens, positions)
    found = Runner(engine, folder).logits(tokens, positions=positions)
    judge(engine, "positions with gaps", found, expected)
