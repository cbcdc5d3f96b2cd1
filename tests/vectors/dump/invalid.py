"""The vectors that every reader refuses, each with the line that `lockstep dump validate` prints.

A file breaks one rule each. `says` was written by hand, and stands behind the name of the file.
`package_refuses` is False where the rule is one of ours: the safetensors package reads the file.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.vectors.dump.raw import file, plain, tensor

ONE = tensor("x", "F32", [1], [1.0])
X = '"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
RIGHT = f"{{{X}}}"
LIST = "must be a JSON list of token ids, not"


@dataclass(frozen=True)
class Invalid:
    what: str
    data: bytes
    says: str
    package_refuses: bool = True


def fields(text: str, data: bytes = ONE.data) -> bytes:
    """Return a file with one tensor `x` that is described so."""
    return file(f'{{"x":{{{text}}}}}', data)


def metadata(text: str) -> bytes:
    return file(f'{{"__metadata__":{text},{X}}}', ONE.data)


def trace(**about: str) -> bytes:
    return plain([ONE], {"format": "lockstep-trace", "version": "1"} | about)


def pair(first: str, second: str, count: int) -> bytes:
    """Return a file with two tensors of bytes at these offsets."""
    one, two = (f'{{"dtype":"U8","shape":[2],"data_offsets":{at}}}' for at in (first, second))
    return file(f'{{"a":{one},"b":{two}}}', bytes(count))


INVALID: dict[str, Invalid] = {
    "empty": Invalid("a file of no bytes", b"", "file is empty"),
    "short": Invalid(
        "less than a length", b"\x08" * 7, "file is shorter than the 8-byte header length"
    ),
    "length_0": Invalid("a header of no bytes", file(""), "header is empty: its length is 0"),
    "length_past_end": Invalid(
        "a length beyond the file", file("{}", length=3), "header length 3 exceeds file (10 bytes)"
    ),
    "length_big_endian": Invalid(
        "a length with its bytes swapped",
        (2).to_bytes(8, "big") + b"{}",
        "header length 144115188075855872 exceeds file (10 bytes): its byte order looks swapped",
    ),
    "space_before": Invalid(
        "a space before the header",
        file(f" {RIGHT}", ONE.data),
        "header must start with '{', not byte 0x20",
        False,
    ),
    "zeros_behind": Invalid(
        "zero bytes behind the header",
        file(RIGHT.encode() + b"\0\0", ONE.data),
        "bad header padding: byte 0x00, only spaces may follow the header (byte 54 of the header)",
    ),
    "not_utf8": Invalid(
        "Latin-1 in a name",
        file(RIGHT.encode().replace(b'"x"', b'"\xe9"'), ONE.data),
        "header is not UTF-8 (byte 2)",
    ),
    "not_json": Invalid(
        "a comma too many",
        file('{"x":{},}'),
        "header is not valid JSON at byte 8 (Expecting property name enclosed in double quotes)",
    ),
    "two_of_one_name": Invalid(
        "one name twice", file(f"{{{X},{X}}}", ONE.data), "duplicate tensor name 'x'", False
    ),
    "two_of_one_key": Invalid(
        "one key of the metadata twice",
        metadata('{"a":"1","a":"2"}'),
        "duplicate key 'a' in __metadata__",
        False,
    ),
    "metadata_number": Invalid(
        "tokens as a list, not as a string",
        metadata('{"tokens":[1,2]}'),
        "__metadata__ must map string to string (key 'tokens')",
    ),
    "no_name": Invalid(
        "a name of no letters",
        file(RIGHT.replace('"x"', '""'), ONE.data),
        "tensor name is empty",
        False,
    ),
    "missing_field": Invalid(
        "no shape",
        fields('"dtype":"F32","data_offsets":[0,4]'),
        "tensor entry has no field 'shape' (tensor 'x')",
    ),
    "unknown_field": Invalid(
        "a fourth field",
        fields('"dtype":"F32","shape":[1],"data_offsets":[0,4],"order":"C"'),
        "tensor entry has an unknown field 'order' (tensor 'x')",
        False,
    ),
    "unknown_dtype": Invalid(
        "a dtype by another name",
        fields('"dtype":"float32","shape":[1],"data_offsets":[0,4]'),
        "unsupported dtype 'float32' (tensor 'x')",
    ),
    "negative_shape": Invalid(
        "a size below 0",
        fields('"dtype":"F32","shape":[-1],"data_offsets":[0,4]'),
        "bad shape [-1]: it must list sizes from 0 (tensor 'x')",
    ),
    "float_shape": Invalid(
        "a size with a point",
        fields('"dtype":"F32","shape":[1.0],"data_offsets":[0,4]'),
        "bad shape [1.0]: it must list sizes from 0 (tensor 'x')",
    ),
    "offset_and_length": Invalid(
        "a length in place of an end",
        fields('"dtype":"F32","shape":[1],"data_offsets":[4,0]'),
        "bad data_offsets [4, 0]: it must be [begin, end] with 0 <= begin <= end (tensor 'x')",
    ),
    "size_mismatch": Invalid(
        "a shape that needs other bytes",
        fields('"dtype":"F32","shape":[2],"data_offsets":[0,4]'),
        "size mismatch: F32 [2] needs 8 bytes, data_offsets give 4 (tensor 'x')",
    ),
    "overlap": Invalid(
        "bytes of two tensors", pair("[0,2]", "[1,3]", 3), "tensors overlap: 'a', 'b'"
    ),
    "gap": Invalid(
        "bytes of no tensor",
        pair("[0,2]", "[3,5]", 5),
        "bytes 2 to 3 of the data belong to no tensor (before tensor 'b')",
    ),
    "offsets_from_the_file": Invalid(
        "offsets from the first byte of the file",
        fields('"dtype":"F32","shape":[1],"data_offsets":[64,68]'),
        "bytes 0 to 64 of the data belong to no tensor (before tensor 'x')",
    ),
    "truncated": Invalid(
        "the last byte is missing",
        file(RIGHT, ONE.data[:3]),
        "file truncated: needs 66 bytes, has 65 (tensor 'x' ends past the end of the file)",
    ),
    "bytes_behind": Invalid(
        "a byte behind the last tensor",
        file(RIGHT, ONE.data + b"\0"),
        "1 bytes after the last tensor belong to no tensor (from byte 66)",
    ),
    "bool_of_2": Invalid(
        "a truth that is neither 0 nor 1",
        fields('"dtype":"BOOL","shape":[1],"data_offsets":[0,1]', b"\x02"),
        "a BOOL tensor holds a byte that is neither 0 nor 1: number 0 is 2 (tensor 'x')",
        False,
    ),
    "nothing": Invalid(
        "no tensors", file("{}"), "holds no tensors, so there is nothing to compare", False
    ),
    "other_version": Invalid(
        "a version to come",
        trace(version="2"),
        "trace version '2', but should be '1' (__metadata__)",
        False,
    ),
    "no_version": Invalid(
        "a trace without a version",
        plain([ONE], {"format": "lockstep-trace"}),
        "trace version null, but should be '1' (__metadata__)",
        False,
    ),
    "tokens_not_json": Invalid(
        "ids without brackets", trace(tokens="1, 2"), f"tokens {LIST} '1, 2' (__metadata__)", False
    ),
    "tokens_negative": Invalid(
        "an id below 0", trace(tokens="[1, -1]"), f"tokens {LIST} '[1, -1]' (__metadata__)", False
    ),
    "tokens_nested": Invalid(
        "ids of a batch",
        trace(tokens="[[1, 2]]"),
        f"tokens {LIST} '[[1, 2]]' (__metadata__)",
        False,
    ),
    "uniform_of_1": Invalid(
        "a random number that is not below 1",
        trace(uniforms="[0.5, 1]"),
        "uniforms must be a JSON list of numbers from 0 to below 1, not '[0.5, 1]' (__metadata__)",
        False,
    ),
    "sampling_beyond": Invalid(
        "a share of more than all",
        trace(sampling='{"top_p": 1.5}'),
        "sampling: top_p=1.5, but should be above 0 and at most 1 (__metadata__)",
        False,
    ),
    "sampling_of_nobody": Invalid(
        "an engine that is none",
        trace(sampling='{"semantics": "mine"}'),
        "sampling: semantics='mine', but should be one of lockstep, llama.cpp, transformers, "
        "mlx-lm, vllm, ember, wedlm (__metadata__)",
        False,
    ),
    "chat_of_3": Invalid(
        "a chat that is neither true nor an object",
        trace(chat="3"),
        "chat must be true, false or a JSON object of what the template is given, not '3' "
        "(__metadata__)",
        False,
    ),
    "messages_of_text": Invalid(
        "messages without a role",
        trace(messages='["hi"]'),
        "messages must be a JSON list of objects with role and content, not '[\"hi\"]' "
        "(__metadata__)",
        False,
    ),
    "step_lengths_short": Invalid(
        "steps of fewer tokens than were fed",
        trace(tokens="[1]", decoded="[2, 3]", step_lengths="[1]"),
        "step_lengths '[1]' must be from 1 on, and add up to the 2 ids of decoded (__metadata__)",
        False,
    ),
    "step_of_nothing": Invalid(
        "a step of a batch that was fed nothing",
        trace(batch="[[1], [2]]", batch_decoded="[[3], [4]]", step_lengths="[0, 1]"),
        "step_lengths '[0, 1]' must be from 1 on (__metadata__)",
        False,
    ),
    "batch_of_one": Invalid(
        "a batch that is a list of ids",
        trace(batch="[1, 2]"),
        "batch must be a JSON list of lists of token ids, not '[1, 2]' (__metadata__)",
        False,
    ),
    "padding_between": Invalid(
        "a side that rows have not",
        trace(batch="[[1], [2]]", padding="middle"),
        "padding must be 'left' or 'right', not 'middle' (__metadata__)",
        False,
    ),
    "decoded_floats": Invalid(
        "ids with points", trace(decoded="[1.0]"), f"decoded {LIST} '[1.0]' (__metadata__)", False
    ),
}
