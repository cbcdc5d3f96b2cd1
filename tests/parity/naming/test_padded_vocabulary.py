"""A padded head has columns behind the vocabulary, which are no token's. By hand and law."""

import numpy as np
import pytest

from lockstep.parity.naming.padded_vocabulary import within_vocabulary
from tests.parity.explaining.ports import dumped, explained, ids, port

MODEL = "models/untied_float32"
KNOWN = {"logits": (1, 5, 31)}


def padded(taps, by, value=0.0):
    """Return what a port dumps whose head has columns more, which hold a value."""
    room = [(0, 0), (0, 0), (0, by)]
    wide = {tap for tap in taps if tap in ("logits", "lm_head")}
    return {
        tap: np.pad(one, room, constant_values=value) if tap in wide else one
        for tap, one in taps.items()
    }


def to_the_next(taps):
    return -taps["logits"].shape[-1] % 64 or 64


@pytest.mark.parametrize("value", [0.0, -np.inf, np.nan, 99.0])
@pytest.mark.parametrize("level", ["modules", "layers", "logits"])
def test_a_right_port_with_a_padded_head_is_right(level, value):
    taps = port(MODEL, level=level)
    found = explained(MODEL, padded(taps, to_the_next(taps), value))
    assert found.verdict == "clean"
    assert any(
        "columns of the logits are behind the vocabulary" in one for one in found.conventions
    )


def test_a_bug_of_the_logits_is_named_all_the_same():
    taps = port(MODEL, ["final-norm-missing"], level="layers")
    assert ids(explained(MODEL, padded(taps, to_the_next(taps)))) == {"final-norm-missing"}


@pytest.mark.parametrize("wide", [30, 31, 33, 1056])
def test_another_width_is_another_head(wide):
    """Fewer, as many, no multiple of 8, and more than any device asks for."""
    shape = (1, 5, wide)
    dump = dumped({"logits": np.zeros(shape, np.float32)})
    assert within_vocabulary(dump, KNOWN, str) == (dump, [])


@pytest.mark.parametrize("shape", [(1, 5, 32), (5, 32), (32,), (1, 5, 1048)])
def test_what_is_cut(shape):
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    dump = dumped({"logits": value, "other": value})
    cut, (line,) = within_vocabulary(dump, KNOWN, str)
    assert np.array_equal(cut.read("logits"), value[..., :31])
    assert cut.shapes == {"logits": (*shape[:-1], 31), "other": shape}
    assert np.array_equal(cut.read("other"), value)
    assert line.startswith(f"{shape[-1] - 31} of {shape[-1]} columns of the logits")
