"""A tied head that is stored all the same. By law: of two that differ none is chosen."""

from typing import Any

import pytest

from lockstep.reference.checkpoint import tied_head
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError


def test_a_head_stored_beside_its_embedding(model: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(tied_head, "TILE", 1000)  # seven rows, so that the last tile is a short one
    model.config["tie_word_embeddings"] = True
    model.tensors["lm_head.weight"] = model.tensors["model.embed_tokens.weight"].copy()
    assert len(open_checkpoint(model.save()).warnings) == 1
    model.tensors["lm_head.weight"][-1, -1] += 1
    with pytest.raises(InputError, match="transformers would run it"):
        open_checkpoint(model.save())
    model.config["tie_word_embeddings"] = False
    assert open_checkpoint(model.save()).has("lm_head.weight")
