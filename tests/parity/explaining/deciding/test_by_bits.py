"""Of explanations that all pass the gate, one that has the port's bits outvotes the others."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.parity.explaining.deciding import by_bits
from lockstep.parity.explaining.deciding.by_bits import keep_heard

RNG = np.random.default_rng(5)
PORT = RNG.standard_normal((1, 8, 16)).astype(np.float16)
OFF = PORT + (RNG.random(PORT.shape) < 0.1).astype(np.float16)  # a tenth of the bits are others
MADE = {"true": PORT, "near": OFF, "same": PORT.copy(), "far": OFF + 1}


def explanation(name: str, ratio: float) -> Any:
    return SimpleNamespace(atoms=name, judgement=SimpleNamespace(ratio=ratio))


def trial(dtype: type, also: tuple[Any, ...] = ()) -> Any:
    return SimpleNamespace(
        dtype=np.dtype(dtype), also=also, graph=None, port=lambda target: MADE["true"]
    )


@pytest.fixture(autouse=True)
def values(monkeypatch):
    def share(run: Any, trial: Any, pairs: Any) -> float:
        return float(np.mean(MADE[pairs[0][1]] == PORT))

    monkeypatch.setattr(by_bits, "rewritten", lambda atoms, graph: atoms)
    monkeypatch.setattr(by_bits, "bits", lambda run, piece, calls, dtype: MADE[calls])
    monkeypatch.setattr(by_bits, "agreement", share)
    monkeypatch.setattr(by_bits, "convention_of", lambda *given: (None, share(None, *given)))
    monkeypatch.setattr(by_bits, "telling", lambda *given: np.True_)


@pytest.mark.parametrize(
    ("names", "dtype", "kept"),
    [
        (["near", "true"], np.float16, ["true"]),  # whichever leaves less
        (["true", "near"], np.float16, ["true"]),
        (["near", "true", "same"], np.float16, ["true", "same"]),  # the same bits: a tie
        (["near", "far"], np.float16, ["near", "far"]),  # none has nearly all
        (["near", "true"], np.float32, ["near", "true"]),  # too many orders of sums
    ],
)
def test_what_has_the_ports_bits_outvotes_what_has_not(names, dtype, kept):
    """By hand."""
    piece: Any = SimpleNamespace(target=0)
    some = [explanation(name, place) for place, name in enumerate(names)]
    ((_, left),) = keep_heard([(piece, some)], trial(dtype))
    assert [one.atoms for one in left] == kept


def test_what_rounding_may_send_to_another_expert_has_no_vote(monkeypatch):
    """By hand: where the bits differ no token tells."""
    monkeypatch.setattr(by_bits, "telling", lambda *given: MADE["near"] == MADE["true"])
    piece: Any = SimpleNamespace(target=0)
    some = [explanation("near", 0), explanation("true", 1)]
    assert keep_heard([(piece, some)], trial(np.float16)) == [(piece, some)]


def test_nothing_is_asked_of_what_was_rounded_when_stored():
    piece: Any = SimpleNamespace(target=0)
    some = [explanation("near", 0), explanation("true", 1)]
    assert keep_heard([(piece, some)], trial(np.float16, also=(None,))) == [(piece, some)]


# Where bits depend on how a port rounds: the share of explanations' bits by two conventions.
BY_CONVENTION = {
    "a little": {"eager": 0.86, "fused": 0.8},
    "fused": {"eager": 0.9, "fused": 1.0},
    "eager": {"eager": 1.0, "fused": 0.9},
}
ANY_ORDER = RNG.permutation(PORT.size).reshape(PORT.shape)


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["a little", "fused"], ["fused"]),  # the nearest one's convention hides the true bits
        (["eager", "fused"], ["eager", "fused"]),  # nobody knows which convention is the port's
        (["eager", "a little"], ["eager"]),
    ],
)
def test_each_explanation_is_asked_in_the_convention_that_is_best_for_it(monkeypatch, names, kept):
    """By hand."""

    def value(run: str, name: str) -> np.ndarray:
        return PORT + (BY_CONVENTION[name][run] * PORT.size <= ANY_ORDER).astype(np.float16)

    def share(run: str, trial: Any, pairs: Any) -> float:
        return float(np.mean(value(run, pairs[0][1]) == PORT))

    def best(trial: Any, pairs: Any) -> tuple[str, float]:
        shares = {run: share(run, trial, pairs) for run in ("eager", "fused")}
        return max(shares.items(), key=lambda entry: entry[1])

    monkeypatch.setattr(by_bits, "bits", lambda run, piece, calls, dtype: value(run, calls))
    monkeypatch.setattr(by_bits, "agreement", share)
    monkeypatch.setattr(by_bits, "convention_of", best)
    piece: Any = SimpleNamespace(target=0)
    some = [explanation(name, place) for place, name in enumerate(names)]
    ((_, left),) = keep_heard([(piece, some)], trial(np.float16))
    assert [one.atoms for one in left] == kept
