"""The first tokens of a prompt as a shorter prompt; all of them are the prompt itself. By hand."""

import numpy as np

from lockstep.parity.diff import diff
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.excerpts.beginning import as_explained
from lockstep.parity.writers.lockstep_dump import TraceWriter

ROW = np.linspace(-1, 1, 24, dtype=np.float32).reshape(1, 3, 8)


def written(path, positions):
    with TraceWriter(path, tokens=[5, 6, 7]) as file:
        file.header["__metadata__"]["positions"] = positions
        rows = ROW[:, : positions.count(",") + 1]
        file.add("logits", rows, shape=rows.shape)
        file.add("step.1/logits", ROW[:, :1], shape=(1, 1, 8))
    return open_dump(path)


def test_all_positions_are_explained_as_a_whole_dump_with_its_steps(tmp_path):
    dump = written(tmp_path / "x", "[0, 1, 2]")
    whole, tokens, said, some = as_explained(dump, [5, 6, 7], None)
    assert "positions" not in whole.about and whole.shapes == dump.shapes
    assert (tokens, said, some) == ([5, 6, 7], [], None)


def test_the_first_tokens_with_steps_are_no_prompt_of_their_own(tmp_path):
    dump, tokens, said, some = as_explained(written(tmp_path / "y", "[0, 1]"), None, None)
    assert some is not None and some.rows == ((0, 1),) and tokens is None
    assert said == ["of the prompt these are judged: 2 of 3 tokens: 0..1"]
    assert "step.1/logits" in dump.shapes and dump.tokens == [5, 6, 7]


def test_all_positions_are_compared_as_whole_dumps(tmp_path):
    found = diff(written(tmp_path / "x", "[0, 1, 2]"), written(tmp_path / "y", "[0,1,2]"))
    assert found.verdict == "parity" and not any("of the prompt" in line for line in found.notes)
