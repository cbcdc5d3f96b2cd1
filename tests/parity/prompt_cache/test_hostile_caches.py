"""Files that are no caches, or caches that lie: each is refused in one line. By hand."""

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.prompt_cache import load_cache, save_cache
from lockstep.parity.prompt_cache.saving import write
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from tests.parity.prompt_cache.test_prompt_cache import drawn, read
from tests.reference.caches.test_models_with_caches import FOLDERS

BIG = np.iinfo(np.int64).max


@pytest.fixture(scope="module")
def model():
    return reference.load(FOLDERS["qwen3 packed"])


@pytest.fixture(params=["growing", "rotating", "int8", "affine4", "turbo3"])
def whole(request, model, tmp_path):
    """Return the tensors and the header of a right file, to be spoilt."""
    tokens, path = drawn(model), tmp_path / "right.safetensors"
    save_cache(path, model, read(model, request.param, tokens), tokens)
    file = SafetensorsFile(path)
    return {name: file.read(name) for name in file.entries}, dict(file.metadata)


HEADERS = [
    ({"format": "lockstep-trace"}, "is no saved cache: its format is 'lockstep-trace'"),
    ({"version": "2"}, "is a cache of version '2', but this reads 1"),
    ({"model": "0" * 32}, "was saved with other weights, another config or another adapter"),
    ({"architecture": "gpt2"}, "is a cache of 'gpt2', but "),
    ({"dtype": "bfloat16"}, r"holds 'bfloat16', but the model computes in float32 \(--dtype\)"),
    ({"kind": "paged"}, "kind='paged', but should be one of concatenating"),
    ({"kind": "preallocated"}, "size=|room=None, but a preallocated cache needs 1 or more"),
    ({"room": "1e9"}, "room='1e9', but should be a count of tokens"),
    ({"size": "9" * 30}, "size='9{30}', but should be a count of tokens"),
    ({"keep": "-1"}, "keep='-1', but should be a count of tokens"),
]


@pytest.mark.parametrize(("said", "what"), HEADERS, ids=str)
def test_headers(whole, model, said, what, tmp_path):
    tensors, header = whole
    refused(tmp_path, tensors, header | said, model, what)


def test_a_header_that_says_nothing(whole, model, tmp_path):
    tensors, header = whole
    for key in ("model", "architecture", "dtype", "kind"):
        less = {name: text for name, text in header.items() if name != key}
        refused(tmp_path, tensors, less, model, f"the header of the cache does not say its {key}")
    refused(tmp_path, tensors, {}, model, "is no saved cache: its format is null")


PART = "layers.0.keys.0"
TENSORS = [
    ("tokens", lambda a: a + 10**6, "tokens hold 100"),
    ("tokens", lambda a: 0 * a - 1, "tokens hold -1, but should be 0"),
    ("tokens", lambda a: a[0], r"tokens should be I64 of shape \(rows, tokens\)"),
    ("tokens", lambda a: a[:, :0], r"tokens should be I64 of shape \(rows, tokens\)"),
    ("tokens", lambda a: a.astype(np.int32), "tokens should be I64"),
    ("tokens", lambda a: a[:, :-1], r"tokens are \(1, 11\), but positions \(1, 12\)"),
    ("tokens", None, "tokens should be I64 of shape"),
    ("positions", lambda a: a + 1, "positions do not count the tokens of each row from 0"),
    ("positions", lambda a: 0 * a, "positions do not count the tokens of each row from 0"),
    ("positions", lambda a: np.full_like(a, BIG), f"positions hold {BIG}, but should be -2"),
    (PART, None, f"tensor '{PART}' is missing"),
    (PART, lambda a: a[:, :, :-1], f"tensor '{PART}' is .* but should be"),
    (PART, lambda a: a[:, :1], f"tensor '{PART}' is .* but should be"),
    (PART, lambda a: np.concatenate([a, a]), f"tensor '{PART}' is .* but should be"),
    (PART, lambda a: a.astype(np.float64), f"tensor '{PART}' is F64 of shape"),
    ("layers.99.keys.0", lambda a: np.zeros(3), "tensor 'layers.99.keys.0' is not part of"),
]


@pytest.mark.parametrize(("name", "spoil", "what"), TENSORS)
def test_tensors(whole, model, name, spoil, what, tmp_path):
    tensors, header = whole
    spoilt = {key: value for key, value in tensors.items() if key != name}
    if spoil is not None:
        spoilt[name] = spoil(tensors.get(name))
    refused(tmp_path, spoilt, header, model, what)


def test_of_several_tensors_that_are_wrong_the_first_is_named(whole, model, tmp_path):
    tensors, header = whole
    spoilt = {key: value for key, value in tensors.items() if not key.startswith("layers.")}
    refused(tmp_path, spoilt, header, model, f"tensor '{PART}' is missing")


SLOTS = [
    (lambda a: a + 7, "should name tokens 0..11, each once"),
    (lambda a: 0 * a, "should name tokens 0..11, each once"),
    (lambda a: a - 1, "should name tokens 0..11, each once"),
    (lambda a: a[:-1], "lack tokens that the next one sees"),
    (lambda a: a[None], "should be I64 of one axis"),
    (lambda a: a.astype(np.float32), "should be I64 of one axis"),
    (None, "should be I64 of one axis"),
]


@pytest.mark.parametrize(("spoil", "what"), SLOTS)
@pytest.mark.parametrize("whole", ["rotating"], indirect=True)
def test_slots(whole, model, spoil, what, tmp_path):
    tensors, header = whole
    name = "rings.full_attention.slots"
    spoilt = {key: value for key, value in tensors.items() if key != name}
    if spoil is not None:
        spoilt[name] = spoil(tensors[name])
    refused(tmp_path, spoilt, header, model, f"{name} {what}")


FORGETTING = [  # 12 tokens; of those in a ring of 6, the first 2 stay
    (lambda a: np.where(a == 3, -2, a), "should name tokens 0..11, each once"),
    (lambda a: np.where(a == 3, -1, a), "positions do not count the tokens of each row from 0"),
    (lambda a: np.where(a == 3, -3, a), "positions hold -3, but should be -2..255"),
    (lambda a: np.where(a == 4, 3, a), "positions do not count the tokens of each row from 0"),
    (lambda a: a - 2, "should name tokens|do not count the tokens"),
]


@pytest.mark.parametrize(("spoil", "what"), FORGETTING, ids=range(len(FORGETTING)))
@pytest.mark.parametrize("whole", ["rotating"], indirect=True)
def test_positions_that_are_said_to_be_forgotten(whole, model, spoil, what, tmp_path):
    tensors, header = whole
    refused(tmp_path, tensors | {"positions": spoil(tensors["positions"])}, header, model, what)


@pytest.mark.parametrize("whole", ["growing", "int8"], indirect=True)
def test_a_cache_that_drops_nothing_forgets_nothing(whole, model, tmp_path):
    tensors, header = whole
    positions = np.where(tensors["positions"] == 3, -2, tensors["positions"])
    what = "positions hold -2, but should be -1 or more"
    refused(tmp_path, tensors | {"positions": positions}, header, model, what)


@pytest.mark.parametrize("whole", ["turbo3"], indirect=True)
@pytest.mark.parametrize(
    ("said", "what"),
    [("13", "coded=13, but there are 12 tokens"), ("8", "is .* but should be"),
     ("-1", "coded='-1', but should be a count of tokens")],
)  # fmt: skip
def test_how_many_tokens_are_codes(whole, model, said, what, tmp_path):
    """By hand: 9 of 12, since 3 stay as they are."""
    tensors, header = whole
    assert header["coded"] == "9"
    refused(tmp_path, tensors, header | {"coded": said}, model, what)


@pytest.mark.parametrize("size", [0, 1, 8, 100])
def test_cut_files(whole, model, size, tmp_path):
    tensors, header = whole
    path = tmp_path / "cut.safetensors"
    write(path, tensors, header)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError) as caught:
        load_cache(path, model)
    assert "\n" not in str(caught.value)


def refused(folder, tensors, header, model, what) -> None:
    path = folder / "spoilt.safetensors"
    write(path, tensors, header)
    with pytest.raises(InputError, match=what) as caught:
        load_cache(path, model)
    said = str(caught.value)
    assert said.startswith(str(path)[-40:]) or path.name in said
    assert "\n" not in said


def test_what_cannot_be_saved(model, tmp_path):
    """By hand: other tokens than were read, tokens out of order, a folder that is not there."""
    tokens, path = drawn(model), tmp_path / "cache.safetensors"
    cache = read(model, "growing", tokens)
    with pytest.raises(InputError, match=r"the cache holds tokens of shape \(1, 12\), but"):
        save_cache(path, model, cache, tokens[:, :5])
    with pytest.raises(InputError, match="the cache holds nothing, but tokens of shape"):
        save_cache(path, model, model.make_cache(), tokens)
    turned = model.make_cache()
    model.forward(tokens[:, :3], positions=np.array([[0, 2, 1]]), cache=turned)
    with pytest.raises(InputError, match="cannot be saved: its tokens were not read in order"):
        save_cache(path, model, turned, tokens[:, :3])
    with pytest.raises(InputError, match="cannot be written: No such file"):
        save_cache(tmp_path / "not/there", model, cache, tokens)
    assert not list(tmp_path.iterdir())
