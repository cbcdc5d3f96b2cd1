"""A tied head that is stored all the same. By law: it is said if it is another one."""

from typing import Any

import numpy as np

from lockstep.reference.checkpoint import tied_head
from lockstep.reference.checkpoint.checkpoint import open_checkpoint


def test_a_head_stored_beside_its_embedding(model: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(tied_head, "TILE", 1000)  # seven rows, so that the last tile is a short one
    model.config["tie_word_embeddings"] = True
    model.tensors["lm_head.weight"] = model.tensors["model.embed_tokens.weight"].copy()
    assert len(open_checkpoint(model.save()).warnings) == 1
    assert not open_checkpoint(model.path).unused
    model.tensors["lm_head.weight"][-1, -1] += 1
    said = open_checkpoint(model.save()).warnings
    assert [one for one in said if "transformers runs the stored head" in one] == said[1:]
    assert len(said) == 2
    assert [*open_checkpoint(model.path).unused] == ["lm_head.weight"]
    stored = open_checkpoint(model.path).tensor("lm_head.weight")
    assert isinstance(stored, np.ndarray)
    assert np.array_equal(stored, model.tensors["lm_head.weight"])
    model.config["tie_word_embeddings"] = False
    assert open_checkpoint(model.save()).has("lm_head.weight")
