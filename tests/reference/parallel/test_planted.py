"""Bugs of other engines' ranks, planted here: the comparison with one rank shows each. By law.

What is planted, from hand-written ports: a sum that was left out, a bias that every rank adds, a
fused matrix that is cut as one, key heads dealt out in turns, a table without its mask.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.reference.checkpoint.parallel import rank as rank_module
from lockstep.reference.parallel import run as run_module
from lockstep.reference.parallel.each import Each
from lockstep.reference.parallel.model import load

WITNESSES = Path(__file__).parents[2] / "witnesses"


def missing_sum(monkeypatch):
    """Every rank goes on with its own part; the first one is looked at."""
    monkeypatch.setattr(run_module, "all_sum", lambda ops, parts: parts[0])


def bias_everywhere(monkeypatch):
    def product(run, x, path):
        bias = f"{path}.bias"
        held = run.weight(bias) if run.checkpoint.has(bias) else None
        return run.projected(x, run.weight(f"{path}.weight"), held, path)

    monkeypatch.setattr(run_module, "product", product)


def contiguous(monkeypatch):
    """Cut [Q|K|V] in three pieces as if it were one matrix."""
    right = rank_module.spans_of

    def wrong(checkpoint, module, rank, ranks):
        spans = right(checkpoint, module, rank, ranks)
        if not module.endswith("c_attn"):
            return spans
        rows = sum(stop - first for first, stop in spans)
        return ((rank * rows, (rank + 1) * rows),)

    monkeypatch.setattr(rank_module, "spans_of", wrong)


def heads_in_turns(monkeypatch):
    """Give rank r key head r % heads, and not the one that its query heads look at."""
    right = rank_module.spans_of

    def wrong(checkpoint, module, rank, ranks):
        keys = module.endswith(("k_proj", "v_proj"))
        turned = (rank % 2) * 2 + rank // 2 if keys and ranks == 4 else rank
        return right(checkpoint, module, turned, ranks)

    monkeypatch.setattr(rank_module, "spans_of", wrong)


def no_mask(monkeypatch):
    """Look up row 0 of a rank for a word that it has not, and add that up."""

    def wrong(run, ids, path):
        ((first, stop),) = run.checkpoint.spans(path)
        return run.looked_up(np.where((ids >= first) & (ids < stop), ids - first, 0), path)

    monkeypatch.setattr(run_module, "own_rows", wrong)


@dataclass(frozen=True)
class Planted:
    """A bug, a model that shows it, how many ranks, and the first tap that is off."""

    plant: object
    model: str
    ranks: int
    first: str


BUGS = {
    "tp-allreduce-missing": Planted(missing_sum, "models/untied_float32", 2, "model.embed_tokens"),
    "tp-rowparallel-bias": Planted(
        bias_everywhere, "gpt2/original", 3, "transformer.h.0.attn.c_proj"
    ),
    "tp-fused-shard-contiguous": Planted(
        contiguous, "gpt2/original", 3, "transformer.h.0.attn.c_attn"
    ),
    "tp-kv-shard": Planted(
        heads_in_turns, "models/untied_float32", 4, "model.layers.0.self_attn.k_proj"
    ),
    "tp-vocab-parallel-mask": Planted(no_mask, "models/untied_float32", 2, "model.embed_tokens"),
}


def taps_of(model, tokens) -> dict:
    taps = {}
    model.forward(tokens, trace=taps.__setitem__)
    return taps


def first_off(found: dict, right: dict) -> str | None:
    """Return the first tap that differs, in the order of the forward pass; of all ranks alike."""
    for name, value in right.items():
        pairs = zip(found[name], value, strict=True) if isinstance(value, Each) else None
        pairs = [(found[name], value)] if pairs is None else pairs
        if any(np.abs(one - other).max() > 1e-3 * other.std() for one, other in pairs):
            return name
    return None


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen_where_it_was_made(monkeypatch, bug):
    one = BUGS[bug]
    folder = WITNESSES / one.model
    whole = reference.load(folder)
    tokens = np.random.default_rng(7).integers(0, whole.config.vocab_size, (2, 9))
    right = taps_of(load(folder, ranks=one.ranks), tokens)
    assert first_off(taps_of(load(folder, ranks=one.ranks), tokens), right) is None
    one.plant(monkeypatch)
    wrong = taps_of(load(folder, ranks=one.ranks), tokens)
    assert first_off(wrong, right) == one.first
    logits = whole.forward(tokens)
    assert np.abs(wrong["logits"] - logits).max() > 0.05 * logits.std()
