"""Batches of unequal prompts, judged by the torch modules of transformers, and traced by them.

By law: a row is as it is alone, whatever fills it up. By hand: bugs planted in one module, or in
what one row is told. By witness: the reference, which has some of the architectures as well.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lockstep import parity
from lockstep.parity.cli import main
from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.parity.judging.padding import Padding
from lockstep.parity.torch_modules.batches import stacked
from lockstep.reference.checkpoint.errors import InputError
from tests.peers.new_architectures import bugs
from tests.peers.new_architectures.builds import Folders, loaded
from tests.peers.new_architectures.runs import only, wrong
from tests.witnesses import build

WITNESSES = Path(__file__).parents[1] / "witnesses"
ROWS = [[3, 14, 15, 9, 26, 5, 35, 8], [7, 9, 32], [5, 5, 6, 1, 2]]
LONGEST = max(map(len, ROWS))
FED = [[7], [8], [9]]
ENDS = ("model.embed_tokens", "logits")
LAYER = re.compile(r"model\.layers\.[0-9]+")


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    build.settle()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("models"))


def filled(row: list[int], filler: list[int], side: str) -> list[int]:
    rest = filler * (LONGEST - len(row))
    return rest + row if side == "left" else row + rest


def captured(model: Any, side: str, steps: int = 0, shift: int = 0) -> Dump:
    """Run the batch as `generate` does; row 1 is told positions that begin at `shift`."""
    ids = torch.tensor([filled(row, [0], side) for row in ROWS])
    mask = torch.tensor([filled([1] * len(row), [0], side) for row in ROWS])
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    places[1] += shift * torch.arange(LONGEST)
    told: dict[str, Any] = {"use_cache": steps > 0}
    with parity.capture.torch(model) as dump, torch.no_grad():
        made = model(ids, attention_mask=mask, position_ids=places, **told)
        for step in range(steps):
            mask = torch.cat([mask, torch.ones(len(ROWS), 1, dtype=mask.dtype)], dim=1)
            places = torch.tensor([[len(row) + step] for row in ROWS])
            told["past_key_values"] = made.past_key_values
            made = model(torch.tensor(FED), attention_mask=mask, position_ids=places, **told)
    return dump


@pytest.mark.parametrize(
    ("name", "dtype", "side", "steps"),
    [
        ("Olmo2", "float32", "right", 0),
        ("Olmo2", "bfloat16", "left", 2),
        ("Gemma3Text", "float32", "right", 0),
        ("Gemma3Text", "float32", "left", 2),
        ("Mixtral", "float16", "right", 0),
        ("Mixtral", "float32", "left", 2),
        ("Olmoe", "bfloat16", "left", 0),
    ],
)
def test_a_right_batch_raises_no_alarm_and_a_bug_is_its_module_s(name, dtype, side, steps, folder):
    dump = captured(loaded(folder(name), dtype), side, steps)
    result = parity.diff(dump, dump, model=folder(name))
    assert wrong(result) == [] and result.compared >= 30 * (steps + 1)
    model = loaded(folder(name), dtype)
    bugs.with_larger_scores(model)
    dump = captured(model, side, steps)
    tap = "model.layers.1.self_attn.o_proj"
    known = {tap, *(f"step.{step}/{tap}" for step in range(1, steps + 1))}
    found = wrong(parity.diff(dump, dump, model=folder(name)))
    assert tap in found and {*found} <= known


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_bug_of_one_row_is_told_with_it(side, folder):
    """By hand: row 1 turns twice as fast: the angles are wrong, of which a module hands out the
    cosines first, and so is what each attention makes of the others."""
    dump = captured(loaded(folder("Olmo2"), "float32"), side, shift=1)
    result = parity.diff(dump, dump, model=folder("Olmo2"))
    own = [f"model.layers.{layer}.self_attn.o_proj" for layer in range(3)]
    assert wrong(result) == ["model.rotary_emb", *own]
    assert all("in row 1; first at [1, " in tap.place for tap in result.taps if tap.place)
    told = Dump(dump.path, {name: shape for name, shape in dump.shapes.items()
                            if name != "model.rotary_emb"}, dump.read, dump.about)  # fmt: skip
    result = parity.diff(told, told, model=folder("Olmo2"))
    assert wrong(result) == own
    assert all("in row 1; " in tap.place for tap in result.taps if tap.name in own)


def test_what_fills_a_row_up_is_compared_with_nothing(folder):
    """By law: NaN there changes no verdict; in a real token it does."""
    dump = captured(loaded(folder("Olmo2"), "float32"), "right")

    def spoilt(row: int, token: int) -> Dump:
        def read(name: str) -> np.ndarray:
            value = dump.read(name).copy()
            if name == "model.layers.1" and value.shape[:2] == (len(ROWS), LONGEST):
                value[row, token] = np.nan
            return value

        return Dump(dump.path, dump.shapes, read, dump.about)

    for token, verdict in ((5, "parity"), (2, "diverged")):
        port = spoilt(1, token)
        result = parity.diff(port, port, model=folder("Olmo2"))
        assert result.verdict == verdict


def test_near_choices_of_a_batch_are_the_port_s(folder):
    """By hand: two experts have nearly the same scores, and a token takes the other one."""
    model = loaded(folder("Mixtral"), "bfloat16")
    gate = model.model.layers[1].mlp.gate.weight.data
    gate[1] = gate[0] * (1 + 2**-7)
    model.save_pretrained(folder.home / "twins")
    places = [
        row * LONGEST + place for row, tokens in enumerate(ROWS) for place in range(len(tokens))
    ]
    bugs.with_a_near_expert(model, places)
    dump = captured(model, "right")
    port = only(dump, lambda name: LAYER.fullmatch(name) or name in ENDS)
    result = parity.diff(port, port, model=folder.home / "twins")
    assert result.verdict == "parity" and result.compared == 5
    assert any("within rounding of a tie" in line for line in result.conventions)


@pytest.mark.parametrize("shape", [(), (3, LONGEST, 5), (2, LONGEST, 48), (24,)])
def test_a_misshapen_tap_is_told_with_the_shape_in_the_file(shape, folder):
    """By hand."""
    dump, name = captured(loaded(folder("Olmo2"), "float32"), "right"), "model.layers.1"

    def read(one: str) -> np.ndarray:
        return np.ones(shape, np.float32) if one == name else dump.read(one)

    port = Dump(dump.path, {**dump.shapes, name: shape}, read, dump.about)
    result = parity.diff(port, port, model=folder("Olmo2"))
    (tap,) = [tap for tap in result.taps if tap.name == name]
    told = f"shape {list(shape)}, but should be [3, {LONGEST}, 48]"
    assert (tap.status, tap.place, tap.shape) == ("diverged", told, shape)


@pytest.mark.parametrize("path", ["llama/mistral_window", "qwen3_moe/separate", "gpt2/original"])
def test_a_trace_of_a_batch_is_that_of_the_reference(path, tmp_path, capsys):
    """By witness: the reference runs the rows together, the modules each alone."""
    model, prompt = str(WITNESSES / path), ["--tokens", "3,14,15,9,26,5", "--tokens", "35,8"]
    for backend in ("reference", "transformers"):
        out = str(tmp_path / backend)
        run = [*prompt, "--decode", "2", "--backend", backend, "-o", out]
        assert main(["trace", model, *run]) == 0
        assert f"of a batch of 6, 2 tokens and 2 decoded, {backend}" in capsys.readouterr().out
    left, right = (open_dump(tmp_path / name) for name in ("reference", "transformers"))
    assert left.about["batch_decoded"] == right.about["batch_decoded"]
    assert left.batch == right.batch == [[3, 14, 15, 9, 26, 5], [35, 8]]
    assert parity.diff(left, right).verdict == "parity"
    assert parity.diff(left, right).compared > 50
    assert parity.diff(right, left, model=model).verdict == "parity"  # and by the modules
    assert main(["explain", model, str(tmp_path / "transformers")]) == 0


def test_steps_of_a_batch_must_be_said(folder):
    """By law: a row that is run alone would go on by a choice of its own."""
    dump = captured(loaded(folder("Olmo2"), "float32"), "right", 1)
    about = {key: value for key, value in dump.about.items() if key != "batch_decoded"}
    port = Dump(dump.path, dump.shapes, dump.read, about)
    with pytest.raises(InputError, match=r"say what was fed, in the metadata: batch_decoded"):
        parity.diff(port, port, model=folder("Olmo2"))


def test_rows_are_put_side_by_side():
    """By hand."""
    padding = Padding((3, 1))
    long, short = np.ones((1, 3, 2)), 2 * np.ones((1, 1, 2))
    assert stacked([long, short], padding)[:, :, 0].tolist() == [[1, 1, 1], [2, 0, 0]]
    assert stacked([long[0], short[0]], padding).shape == (2, 3, 2)
    assert stacked([np.ones((1, 1, 4))] * 2, padding).shape == (2, 1, 4)  # a step
    heads = [np.ones((1, 4, length, 2)) for length in padding.lengths]
    assert stacked(heads, padding).shape == (2, 3, 4, 2)  # tokens come first
