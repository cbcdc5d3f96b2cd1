"""What is asked of every model, whatever its architecture: the checks of its witnesses.

Each takes a folder with a checkpoint and `expected.npz`, and the name of an engine.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tests.witnesses.judge import TIE
from tests.witnesses.runners import Runner


def expected_of(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "expected.npz") as expected:
        return dict(expected)


def check_logits(folder: Path, engine: str, judge: Any) -> None:
    """Compare the prefill, and the last token's logits alone."""
    expected, runner = expected_of(folder), Runner(engine, folder)
    row = f"{folder.parent.name} {folder.name}"
    judge(engine, row, runner.logits(expected["tokens"]), expected["logits"])
    last = runner.logits(expected["tokens"], last_only=True)
    judge(engine, row, last, expected["logits"][:, -1:])


def check_modules(folder: Path, engine: str, judge: Any, hidden: tuple[str, ...] = ()) -> None:
    """Compare what every module gives with what a forward hook saw; fast engines hide some."""
    expected, runner = expected_of(folder), Runner(engine, folder)
    found = runner.taps(expected["tokens"][:1])
    hooked = {k.removeprefix("tap:"): v for k, v in expected.items() if k.startswith("tap:")}
    seen = [name for name in hooked if not (engine in ("mlx", "cpu") and name.endswith(hidden))]
    assert len(seen) > 8 if hidden else len(seen) == len(hooked) > 8
    for name in seen:
        last = found[name][:1, -hooked[name].shape[1] :]
        judge(engine, "modules", last, hooked[name])


def check_cached(folder: Path, engine: str, judge: Any) -> None:
    """Compare chunks through a cache with the prefill of transformers."""
    expected, runner = expected_of(folder), Runner(engine, folder)
    tokens = expected["tokens"]
    length = tokens.shape[1]
    for name, plan in {
        "one by one": [1] * length,
        "chunks": [8] * (length // 8),
        "uneven": [1, 17, length - 19, 1],
    }.items():
        judge(engine, f"cached, {name}", runner.chunked(tokens, plan), expected["logits"])


def check_greedy(folder: Path, engine: str) -> None:
    """Compare the greedy continuation of two equal prompts."""
    expected, runner = expected_of(folder), Runner(engine, folder)
    assert expected["margin"] > TIE
    found, _ = runner.greedy(expected["tokens"], expected["greedy"].shape[1])
    np.testing.assert_array_equal(found, expected["greedy"])


def check_unequal(folder: Path, engine: str, judge: Any) -> None:
    """Compare prompts of unequal length, padded, with what each gives alone."""
    expected, runner = expected_of(folder), Runner(engine, folder)
    tokens, lengths = expected["tokens"], expected["unequal_lengths"]
    count = expected["unequal_greedy"].shape[1]
    ids, seen = runner.greedy(tokens, count, lengths=lengths)
    np.testing.assert_array_equal(ids, expected["unequal_greedy"])
    kept = seen[:, expected["unequal_steps"]]
    judge(engine, "unequal prompts", kept, expected["unequal_logits"])
    padded = runner.logits(tokens, lengths=lengths)
    for row, length in enumerate(lengths):
        judge(engine, "padded prompts", padded[row, :length], expected["logits"][row, :length])


def check_trace(folder: Path, engine: str) -> None:
    """Compare the bits of the logits with and without a listener; no tokens give no logits."""
    expected, runner = expected_of(folder), Runner(engine, folder)
    seen: list[str] = []
    traced = runner.exact(expected["tokens"], trace=lambda name, value: seen.append(name))
    assert len(seen) == len(set(seen)) > 8
    assert seen[-1] == "logits"
    assert traced.tobytes() == runner.exact(expected["tokens"]).tobytes()
    vocabulary = runner.model.config.vocab_size
    assert runner.exact(np.zeros((2, 0), np.int64)).shape == (2, 0, vocabulary)
