"""The witness whose modules are packed in every mode of MLX. By witness: README.md beside this."""

import pytest

from tests.witnesses.conftest import witness_named
from tests.witnesses.runners import EDITS, Runner, redeclared

MODES = {("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16), ("affine", 6, 32), ("affine", 8, 32)}


@pytest.fixture(scope="module")
def modes():
    return witness_named("minifloats_mixed")


def test_every_mode_is_there(modes):
    checkpoint = Runner("reference", modes.folder).model.checkpoint
    stored = [checkpoint.stored(name) for name in checkpoint.names]
    packed = {(one.mode, one.bits, one.group_size) for one in stored if one.packed}
    assert packed == MODES and not checkpoint.warnings


@pytest.mark.parametrize("edit", EDITS)
def test_modes_are_read_off_the_scales(modes, engine, judge, tmp_path, edit):
    """Where config.json keeps silent, or declares another mode for every module."""
    runner = Runner(engine, redeclared(modes.folder, tmp_path / "model", EDITS[edit]))
    assert any("inferred" in warning for warning in runner.model.checkpoint.warnings)
    found = runner.logits(modes.expected["tokens"])
    judge(engine, f"modes, {edit}", found, modes.expected["logits"])
