"""`lockstep dump validate`: what it says of a dump, and each warning, with and without cause.

By hand: each case breaks one thing of a dump that has no warning.
"""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from lockstep.parity.dumps.contents import measure
from lockstep.parity.dumps.parts import PIECE, held
from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.dumps.validation import validate
from lockstep.reference.checkpoint.errors import InputError

ABOUT = {"model": "m", "backend": "b", "dtype": "float32", "decoded": "[7, 5]"}
TOKENS = [3, 1, 2]


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def right():
    """Return the tensors of a dump that nothing can be said against."""
    found = {"model.embed_tokens": numbers(1, 3, 8)}
    for layer in range(3):
        found[f"model.layers.{layer}"] = numbers(1, 3, 8, seed=layer + 1)
        found[f"model.layers.{layer}.mlp"] = numbers(1, 3, 8, seed=layer + 10)
    found["logits"] = numbers(1, 3, 5)
    for step in (1, 2):
        found[f"step.{step}/model.layers.0"] = numbers(1, 1, 8, seed=step + 20)
        found[f"step.{step}/logits"] = numbers(1, 1, 5, seed=step)
    return found


def written(path, tensors, *, tokens=TOKENS, without=(), **about):
    with TraceFile(path, tokens=tokens, **(ABOUT | about)) as file:
        for key in without:
            del file.writer.header["__metadata__"][key]
        for name, value in tensors.items():
            file(name, value)
    return path


@pytest.fixture
def warned(tmp_path):
    """Return the warnings about a changed dump."""

    def run(changed, **about):
        path = written(tmp_path / "port.safetensors", right() | changed, **about)
        return validate(path).warnings

    return run


def test_a_right_dump_has_no_warning(warned):
    assert warned({}) == []


@pytest.mark.parametrize(
    ("core", "changed", "about"),
    [
        ("no tokens in __metadata__", {}, {"without": ["tokens"]}),
        ("tokens in __metadata__ is an empty list", {}, {"tokens": []}),
        ("no dtype in __metadata__", {}, {"without": ["dtype"]}),
        ("dtype in __metadata__ is 'f32', but should be one of float64", {}, {"dtype": "f32"}),
        (
            "1 of 8 tensors have no axis for the 3 tokens: 'model.layers.1' has shape [1, 4, 8]",
            {"model.layers.1": numbers(1, 4, 8)},
            {},
        ),
        ("step.3/ is missing, but there is step.4/", {"step.4/logits": numbers(1, 1, 5)},
         {"decoded": "[1, 2, 3, 4]"}),
        ("decoded in __metadata__ has 1 ids, but the last step is step.2/", {}, {"decoded": "[7]"}),
        ("decoded in __metadata__ has 0 ids", {}, {"without": ["decoded"]}),
        ("no table knows 1 of 13 tensors: 'my_buffer'", {"my_buffer": numbers(2)}, {}),
        ("two names mean one tap: 'model.layers.0' and 'module.model.layers.0'",
         {"module.model.layers.0": numbers(1, 3, 8)}, {}),
        (
            "'logits' is U16; the bits of bfloat16 are called BF16",
            {"logits": np.ones((1, 3, 5), np.uint16)},
            {},
        ),
        ("1 of 12 tensors hold nothing but zeros, the first is 'logits'",
         {"logits": np.zeros((1, 3, 5), np.float32)}, {}),
        ("1 of 12 tensors hold no finite number",
         {"logits": np.full((1, 3, 5), np.nan, np.float32)}, {}),
        ("1 of 12 tensors hold NaN among their numbers, the first is 'logits'",
         {"logits": np.where(numbers(1, 3, 5) > 0, np.nan, 1).astype(np.float32)}, {}),
        ("1 of 13 tensors are empty, the first is 'empty'", {"empty": numbers(0, 3)}, {}),
        ("'model.layers.0' and 'model.layers.2' hold the same values",
         {"model.layers.2": numbers(1, 3, 8, seed=1)}, {}),
        ("'model.layers.0.mlp' and 'model.layers.1.mlp' hold the same values",
         {"model.layers.1.mlp": numbers(1, 3, 8, seed=10)}, {}),
        ("'step.1/logits' and 'step.2/logits' hold the same values: was the step run",
         {"step.2/logits": numbers(1, 1, 5, seed=1)}, {}),
    ],
)  # fmt: skip
def test_what_makes_a_dump_useless_is_told(warned, core, changed, about):
    assert core in "\n".join(warned(changed, **about))


def test_an_infinite_dump_holds_no_finite_number(warned):
    found = warned({"logits": np.full((1, 3, 5), -np.inf, np.float32)})
    assert "\n".join(found).count("hold no finite number") == 1


def test_layers_of_nan_are_not_one_buffer(warned):
    """By law: NaN goes on from layer to layer."""
    nothing = {f"model.layers.{n}": np.full((1, 3, 8), np.nan, np.float32) for n in range(2)}
    assert "hold the same values" not in "\n".join(warned(nothing))


def test_masked_scores_are_nothing_to_warn_of(warned):
    scores = numbers(1, 2, 3, 3)
    scores[0, 0, 0, 1:] = -np.inf
    assert warned({"model.layers.0.self_attn.scores": scores}) == []


def test_experts_that_are_chosen_are_integers(warned):
    chosen = np.ones((1, 3, 2), np.int32)
    assert warned({"model.layers.0.mlp.routing": chosen}) == []


def test_a_token_that_is_fed_twice_is_embedded_alike(warned):
    same = {f"step.{step}/model.embed_tokens": numbers(1, 1, 8) for step in (1, 2)}
    same |= {f"step.{step}/model.layers.0.input_layernorm": numbers(1, 1, 8) for step in (1, 2)}
    assert warned(same, decoded="[7, 7]") == []


def test_one_id_all_along_leaves_every_step_alike(warned):
    same = {f"step.{step}/logits": numbers(1, 1, 5) for step in (1, 2)}
    assert warned(same, tokens=[4, 4, 4], decoded="[4, 4]") == []


def test_names_that_nobody_knows(tmp_path):
    path = written(
        tmp_path / "a.safetensors", {"x": numbers(3), "y": numbers(3, seed=1)}, decoded="[]"
    )
    assert validate(path).warnings == [
        "no table knows any name, 2 of 2 tensors, such as 'x': rename them, or give --map"
    ]


def test_a_bare_dump_says_no_tokens(tmp_path, lockstep):
    np.savez(tmp_path / "a.npz", logits=numbers(1, 3, 5))
    (tmp_path / "folder/step.1").mkdir(parents=True)
    np.save(tmp_path / "folder/logits.npy", numbers(1, 3, 5))
    np.save(tmp_path / "folder/step.1/logits.npy", numbers(1, 1, 5))
    for name in ("a.npz", "folder"):
        said = lockstep("dump", "validate", tmp_path / name)
        assert (said.code, said.err) == (0, "")
        assert "valid, a bare dump" in said.out
        assert "warning: a bare dump that says no tokens" in said.out


def test_a_bare_dump_may_say_its_tokens(tmp_path):
    about = {"tokens": "[3, 1, 2]", "dtype": "fp16"}
    save_file({"logits": numbers(1, 3, 5)}, tmp_path / "a.safetensors", about)
    found = validate(tmp_path / "a.safetensors")
    assert (found.kind, found.to_json()["tokens"]) == ("bare dump", [3, 1, 2])
    assert found.warnings == [
        "dtype in __metadata__ is 'fp16', but should be one of float64, float32, bfloat16, float16"
    ]
    save_file({"logits": numbers(1, 3, 5)}, tmp_path / "b.safetensors", {"tokens": "3"})
    with pytest.raises(InputError, match="tokens must be a JSON list of token ids, not '3'"):
        validate(tmp_path / "b.safetensors")


def test_what_is_printed(tmp_path, lockstep):
    changed = {"logits": np.zeros((1, 3, 5), ml_dtypes.bfloat16), "loss": np.float32(2)}
    path = written(tmp_path / "port.safetensors", right() | changed)
    said = lockstep("dump", "validate", path)
    assert (said.code, said.err) == (0, "")
    for line in (
        f"{path}: valid, a trace",
        "tensors  13: 12 F32, 1 BF16; 810 bytes",
        "names    12 of 13 mean a tap of some model",
        "tokens   3: 3, 1, 2",
        "decoded  2: 7, 5",
        "steps    the prompt and 2 steps",
        "model.layers.0         same                          F32    1x3x8",
        "model.layers.0.mlp     model.layers.0.mlp.down_proj  F32    1x3x8",
        "logits                 same                          BF16   1x3x5   all zero",
        "loss                   -                             F32    scalar",
    ):
        assert line in said.out.splitlines(), said.out


def test_the_document(tmp_path, lockstep):
    path = written(tmp_path / "port.safetensors", right())
    said = lockstep("dump", "validate", path, "--json", "-")
    found = json.loads(said.out)
    assert list(found) == ["valid", "kind", "metadata", "tokens", "decoded", "steps", "dtypes",
                           "bytes", "tensors", "warnings"]  # fmt: skip
    assert (found["valid"], found["kind"], found["tokens"]) == (True, "trace", TOKENS)
    assert (found["decoded"], found["steps"], found["warnings"]) == ([7, 5], [0, 1, 2], [])
    assert found["tensors"][1] == {"name": "model.layers.0", "tap": "model.layers.0", "step": 0,
        "dtype": "F32", "shape": [1, 3, 8], "nan": 0, "infinite": 0, "zeros": 0}  # fmt: skip
    into = tmp_path / "said.json"
    assert lockstep("dump", "validate", path, "--json", into).out.startswith(f"{path}: valid")
    assert json.loads(into.read_text()) == found


def test_a_name_cannot_steer_the_terminal(tmp_path, lockstep):
    name = "::error::\x1b[31mx\n::warning::y"
    path = written(tmp_path / "port.safetensors", right() | {name: numbers(3)})
    said = lockstep("dump", "validate", path)
    assert "\x1b" not in said.out and "\n::" not in said.out


def test_long_lists_and_names_are_cut(tmp_path, lockstep):
    many = {f"my.{'x' * 500}.{number}": numbers(3, seed=number) for number in range(50)}
    path = written(tmp_path / "port.safetensors", many, tokens=range(100))
    said = lockstep("dump", "validate", path).out
    assert "tokens   100: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...\n" in said
    assert "... and 10 more; --json has them all\n" in said
    assert max(map(len, said.splitlines())) < 200


def test_the_dump_is_not_written_over(tmp_path, refuses):
    path = written(tmp_path / "port.safetensors", right())
    refuses("is also read by this command", "dump", "validate", path, "--json", path)


def test_what_is_not_there_or_no_dump(tmp_path, refuses):
    refuses("no such file", "dump", "validate", tmp_path / "none.safetensors")
    refuses("holds no tensors", "dump", "validate", tmp_path)
    refuses("invalid choice: 'repair'", "dump", "repair", tmp_path)


def test_a_tensor_of_several_pieces_is_counted_whole():
    """By loop: NumPy's own counts of the whole."""
    array = np.ones(PIECE + 5, np.float16)
    array[[0, PIECE + 1]] = 0
    array[[1, PIECE + 2, PIECE + 3]] = np.nan
    array[PIECE + 4] = np.inf
    found = measure("x", None, held(array))
    assert (found.zeros, found.nan, found.infinite) == (2, 3, 1)
    assert found.digest != measure("x", None, held(array[::-1])).digest


def test_a_batch_says_its_rows_in_the_place_of_tokens(tmp_path):
    """By hand: two rows, the longer one of three tokens; then a key that is no list of rows."""
    path = tmp_path / "batch.safetensors"
    about = {"format": "lockstep-trace", "version": "1", "dtype": "float32"}
    rows = {"batch": "[[1, 2], [3, 4, 5]]", "padding": "left", "batch_decoded": "[[6]]"}
    save_file({"logits": np.arange(12, dtype=np.float32).reshape(2, 3, 2)}, path, about | rows)
    assert validate(path).warnings == ["batch_decoded has 1 rows, but batch has 2"]
    save_file({"logits": np.ones((2, 3, 2), np.float32)}, path, about | rows | {"batch": "[3]"})
    with pytest.raises(InputError, match="batch must be a JSON list of lists of token ids"):
        validate(path)
