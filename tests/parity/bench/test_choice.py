"""Which engines are meant, and what they compute in. By hand."""

from pathlib import Path

import pytest

from lockstep.parity.bench.choice import Choice, check_readable, choices_of, dtype_of
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.errors import InputError

GGUF = Path(__file__).parents[2] / "witnesses/gguf/qwen3_tied.gguf"


def test_names_and_their_forms_each_once():
    found = choices_of("cpu,,mlx-lm:bfloat16,llama.cpp:Q8_0,cpu,mlx-lm")
    assert [one.label for one in found] == [
        "cpu", "mlx-lm:bfloat16", "llama.cpp:Q8_0", "mlx-lm",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "core"),
    [
        ("vllm", r"^engine: 'vllm', but should be one of reference, mlx, cpu, mlx-lm"),
        ("cpu:float64", r"^cpu: 'float64', but should be one of float32, .*, int16, int8"),
        ("mlx:int8", r"^mlx: 'int8', but should be one of float32, bfloat16, float16"),
        ("llama.cpp:float32", r"^llama\.cpp: 'float32', but should be one of F32"),
        ("mlx-lm:", r"^mlx-lm: '', but should be"),
    ],
)
def test_what_is_unknown(text, core):
    with pytest.raises(InputError, match=core):
        choices_of(text)


@pytest.mark.parametrize(
    ("text", "dtype", "expected"),
    [
        ("cpu", None, "float32"),
        ("cpu", "bfloat16", "bfloat16"),
        ("reference:float64", "bfloat16", "float64"),
        ("transformers", None, "float32"),
        ("transformers:bfloat16", None, "bfloat16"),
        ("mlx", None, "bfloat16"),
        ("mlx-lm", None, "bfloat16"),
        ("mlx-lm", "float32", "float32"),
        ("llama.cpp:F32", "float32", "its own"),
    ],
)
def test_the_dtype_of_a_model_in_bfloat16(tied, text, dtype, expected):
    (choice,) = choices_of(text)
    assert dtype_of(choice, open_checkpoint(tied), dtype) == expected


def test_what_gguf_files_are_for():
    file = open_checkpoint(GGUF)
    for name in ("mlx-lm", "transformers"):
        with pytest.raises(InputError, match="is given folders, and qwen3_tied"):
            check_readable(Choice(name, None), file)
    with pytest.raises(InputError, match="Q8_0 is for copies of folders"):
        check_readable(Choice("llama.cpp", "Q8_0"), file)
    check_readable(Choice("llama.cpp", None), file)
    check_readable(Choice("cpu", None), file)
