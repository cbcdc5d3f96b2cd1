"""The vectors that every reader takes. `raw` is None where the safetensors package writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.vectors.dump.raw import Tensor, file, plain, tensor

TRACE = {"format": "lockstep-trace", "version": "1"}
ONE = tensor("logits", "F32", [1, 2, 2], [1.0, -2.0, 0.5, 3.0])
NORM = tensor("model.norm", "F32", [1, 2, 1], [0.25, -8.0])


@dataclass(frozen=True)
class Valid:
    what: str
    tensors: list[Tensor]
    about: dict[str, str] | None
    raw: bytes | None = None


EVERY = [
    tensor("f64", "F64", [3], [0.1, -0.0, 5e-324]),
    tensor("f32", "F32", [3], [-0.0, 2.0**-149, 3.4028234663852886e38]),
    tensor("f16", "F16", [3], [-0.0, 2.0**-24, 65504.0]),
    tensor("bf16", "BF16", [3], [-0.0, 2.0**-133, 3.3895313892515355e38]),
    tensor("i64", "I64", [2], [-(2**63), 2**63 - 1]),
    tensor("i32", "I32", [2], [-(2**31), 2**31 - 1]),
    tensor("i16", "I16", [2], [-(2**15), 2**15 - 1]),
    tensor("i8", "I8", [2], [-128, 127]),
    tensor("u16", "U16", [2], [0, 65535]),
    tensor("u8", "U8", [2], [0, 255]),
    tensor("bool", "BOOL", [2], [True, False]),
]
NO_NUMBERS = [
    tensor(f"logits.{tag.lower()}", tag, [3], ["NaN", "Infinity", "-Infinity"])
    for tag in ("F64", "F32", "F16", "BF16")
]
STEPS = [
    tensor("logits", "F32", [1, 2, 2], [1.0, 2.0, 3.0, 4.0]),
    tensor("step.1/logits", "F32", [1, 1, 2], [5.0, 6.0]),
    tensor("step.2/logits", "F32", [1, 1, 2], [7.0, 8.0]),
]
NAMES = [
    tensor(name, "F32", [1], [float(number)])
    for number, name in enumerate(
        [
            "слой.0",
            "層.1",
            "e\u0301",
            "\u00e9",
            "\U0001f600",
            'a "b"',
            "c\\d",
            "e f",
            "g\th",
            "l_out-0",
        ]
    )
]
ESCAPES = TRACE | {
    "tokens": "[1, 2]",
    "quote": 'say "a"',
    "backslash": "C:\\port",
    "lines": "a\nb\r\n\tc",
    "control": "\x00\x01\x1f\x7f",
    "letters": "é 層 \U0001f600",
    "": "an empty key",
    "empty": "",
}
SPACED = """{ "__metadata__" : {"format":"lockstep-trace", "version":"1"},
\t"logits": {"shape": [1, 2, 2], "data_offsets": [0, 16], "dtype": "F32"}\r\n}     """
UNORDERED = json.dumps(
    {
        "model.norm": {"dtype": "F32", "shape": [1, 2, 1], "data_offsets": [16, 24]},
        "logits": {"dtype": "F32", "shape": [1, 2, 2], "data_offsets": [0, 16]},
        "__metadata__": TRACE,
    }
)
ESCAPED = (
    r'{"\u006cogits":{"dt\u0079pe":"F\u00332","shape":[1,2,2],"data_offsets":[0,16]},'
    r'"__metadata__":{"a\/b":"\ud83d\ude00"}}'
)

CHUNKS = [
    tensor("logits", "F32", [1, 2, 1], [1.0, 2.0]),
    tensor("step.1/logits", "F32", [1, 2, 1], [3.0, 4.0]),
    tensor("step.2/logits", "F32", [1, 1, 1], [5.0]),
]
BATCH = [
    tensor("logits", "F32", [2, 2, 1], [1.0, 2.0, 0.0, 3.0]),
    tensor("step.1/logits", "F32", [2, 1, 1], [4.0, 5.0]),
]
WORDS = {
    "tokens": "[1, 2]", "decoded": "[3, 4]", "generated": "[3, 4, 5]", "dtype": "float32",
    "prompt": "What is\n2+2?", "chat": '{"enable_thinking": false}', "uniforms": "[0.25, 0.5, 0]",
    "sampling": '{"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1, '
    '"repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 0, '
    '"penalty_window": 64, "semantics": "llama.cpp", "max_new_tokens": 3, "ignore_eos": true}',
}  # fmt: skip
CHAT = {
    "tokens": "[1, 2]", "decoded": "[3, 4]", "generated": "[3, 4]",
    "messages": '[{"role": "system", "content": "\u00e9"}, {"role": "user", "content": "Hi"}]',
    "sampling": '{"do_sample": true}',
}  # fmt: skip

VALID: dict[str, Valid] = {
    "small_trace": Valid(
        "two tensors, and the three keys that a trace should have, in float32",
        [NORM, ONE],
        TRACE | {"tokens": "[7, 8]", "dtype": "float32"},
    ),
    "every_dtype": Valid("each dtype at its edges", EVERY, TRACE | {"tokens": "[1]"}),
    "no_numbers": Valid("NaN and the infinities", NO_NUMBERS, TRACE | {"tokens": "[1, 2, 3]"}),
    "scalar": Valid("a tensor without axes", [tensor("loss", "F32", [], [2.5])], TRACE),
    "empty_tensors": Valid(
        "tensors without numbers, between others",
        [
            tensor("a", "F32", [0, 4], []),
            ONE,
            tensor("b", "F16", [2, 0], []),
            tensor("c", "BF16", [0], []),
        ],
        TRACE,
    ),
    "steps": Valid(
        "a prompt and two steps", STEPS, TRACE | {"tokens": "[1, 2]", "decoded": "[3, 4]"}
    ),
    "chunks": Valid(
        "a prompt, a chunk of two more tokens, and a step of one",
        CHUNKS,
        TRACE | {"tokens": "[1, 2]", "decoded": "[3, 4, 5]", "step_lengths": "[2, 1]"},
    ),
    "batch": Valid(
        "two prompts, the shorter one filled up on its left, and a step",
        BATCH,
        TRACE | {"batch": "[[1, 2], [3]]", "padding": "left", "batch_decoded": "[[4], [5]]"},
    ),
    "text_and_choices": Valid(
        "what a port was asked and what it chose, with its settings and its random numbers",
        STEPS,
        TRACE | WORDS,
    ),
    "chat": Valid(
        "a whole chat, and choices whose random numbers are not said",
        STEPS,
        TRACE | CHAT,
    ),
    "engines": Valid(
        "what computed it, where that says how its values lie",
        [ONE],
        TRACE | {"tokens": "[7, 8]", "backend": "llama.cpp", "rotary_neighbours": "128"},
    ),
    "library": Valid(
        "the library of a module, beside names for people",
        [ONE],
        TRACE
        | {"tokens": "[7, 8]", "backend": "mlx", "library": "mlx_lm", "model": "m", "adapter": "a"},
    ),
    "metadata_escapes": Valid("metadata that JSON must escape", [ONE], ESCAPES),
    "names": Valid("names that are no ASCII, or that JSON must escape", NAMES, TRACE),
    "bare_dump": Valid("no metadata at all", [ONE, NORM], None, plain([ONE, NORM])),
    "other_format": Valid("a format of somebody else's", [ONE], {"format": "pt", "version": "9"}),
    "null_metadata": Valid(
        "null in place of metadata, as MLX writes",
        [ONE],
        None,
        file(f'{{"__metadata__":null,{plain([ONE])[9:-16].decode()}', ONE.data),
    ),
    "unaligned": Valid(
        "a header that ends anywhere, and numbers that begin at an odd byte",
        [tensor("mask", "U8", [1], [7]), ONE],
        None,
        plain([tensor("mask", "U8", [1], [7]), ONE]),
    ),
    "spaces": Valid("spaces between and behind", [ONE], TRACE, file(SPACED, ONE.data)),
    "unordered": Valid(
        "a header in another order than the data, its metadata last",
        [NORM, ONE],
        TRACE,
        file(UNORDERED, ONE.data + NORM.data),
    ),
    "escaped_header": Valid(
        "escapes where none is needed", [ONE], {"a/b": "\U0001f600"}, file(ESCAPED, ONE.data)
    ),
    "other_dtypes": Valid(
        "dtypes that are read, but are no activation's",
        [tensor("ids", "U32", [2], [0, 2**32 - 1]), tensor("hash", "U64", [1], [2**64 - 1])],
        None,
    ),
}
