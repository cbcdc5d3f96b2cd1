"""A head that stays in its file: by hand, of which rows are read when."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from lockstep.reference import load
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.unread import Unread

HEAD = "lm_head.weight"


def test_the_head_is_read_a_tile_at_a_time(model: Any, monkeypatch: Any) -> None:
    reference, read = load(model.save()), []
    checkpoint = reference.checkpoint
    whole, rows = checkpoint.tensor, checkpoint.tensor_rows

    def tensor(name: str) -> Any:
        assert name != HEAD
        return whole(name)

    def tensor_rows(name: str, start: int, stop: int) -> Any:
        read.append((name, start, stop))
        return rows(name, start, stop)

    monkeypatch.setattr(checkpoint, "tensor", tensor)
    monkeypatch.setattr(checkpoint, "tensor_rows", tensor_rows)
    monkeypatch.setattr(sys.modules["lockstep.reference.ops.linear"], "TILE", 10)
    logits = reference.forward([[3, 1]])
    vocabulary = len(model.tensors[HEAD])
    starts = range(0, vocabulary, 10)
    assert vocabulary % 10 and logits.shape == (1, 2, vocabulary)
    assert read == [(HEAD, start, min(start + 10, vocabulary)) for start in starts]


def test_rows_and_the_whole_are_as_stored(model: Any) -> None:
    stored, matrix = model.tensors[HEAD], open_checkpoint(model.save()).matrix(HEAD)
    assert isinstance(matrix, Unread)
    assert matrix.shape == stored.shape and matrix.dtype == stored.dtype
    assert matrix[3:7].tobytes() == stored[3:7].tobytes()
    assert matrix[8 : len(stored) + 8].tobytes() == stored[8:].tobytes()
    assert np.asarray(matrix).tobytes() == stored.tobytes()
    assert np.asarray(matrix, np.float32).tobytes() == stored.astype(np.float32).tobytes()
    assert matrix.astype(np.float64).tobytes() == stored.astype(np.float64).tobytes()
