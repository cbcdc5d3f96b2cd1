"""Caches in files: a run that goes on from one is the run that never stopped. By law, by loop."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.parity.prompt_cache import load_cache, reused, save_cache
from lockstep.parity.prompt_cache.identity import add, identity
from lockstep.parity.prompt_cache.layout import expected
from lockstep.parity.prompt_cache.saving import write
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from lockstep.reference.stores.kinds import KINDS, QUANTISED, ROTATING, TURBO_BITS, UNBIASED
from tests.draws import packed_matrix
from tests.parity.conftest import DEMO, MODELS
from tests.reference.caches.test_models_with_caches import FOLDERS, SIDES, drawn, holds_codes, host
from tests.sampled import sampled

TOLD = (
    {"preallocated": {"room": 20}}
    | {one: {"recent": 3} for one in TURBO_BITS}
    | {one: {"size": 6, "keep": 2} for one in ROTATING}
)


def read(model, kind, tokens, **options):
    cache = model.make_cache(kind, **TOLD.get(kind, {}))
    model.forward(tokens, cache=cache, **options)
    return cache


@sampled(10, "turbo2-cpu")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_loaded_goes_on_to_the_bit(side, kind, tmp_path):
    """By law: the logits of the run that goes on without a file, twice, and again after a trim."""
    model = SIDES[side](FOLDERS["qwen3 packed"])
    tokens, path = drawn(model), tmp_path / "cache.safetensors"
    cache = read(model, kind, tokens[:, :8])
    save_cache(path, model, cache, tokens[:, :8])
    assert holds_codes(cache) == (kind in QUANTISED)
    wanted = [host(model, model.forward(tokens[:, one : one + 1], cache=cache)) for one in (8, 9)]
    for _ in range(2):
        loaded = load_cache(path, SIDES[side](FOLDERS["qwen3 packed"]))
        assert holds_codes(loaded.cache) == (kind in QUANTISED)
        assert loaded.tokens.tolist() == tokens[:, :8].tolist()
        for one, logits in zip((8, 9), wanted, strict=True):
            found = model.forward(tokens[:, one : one + 1], cache=loaded.cache)
            assert (host(model, found) == logits).all()


@sampled(10, "turbo4-mse-cpu")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_holds_what_the_cache_holds_and_no_room(side, kind, tmp_path):
    """By hand: codes stay codes. The tensors are the bytes of the tokens, and two of ids."""
    model = SIDES[side](DEMO)
    tokens, path = drawn(model), tmp_path / "cache.safetensors"
    save_cache(path, model, read(model, kind, tokens), tokens)
    entries = SafetensorsFile(path).entries.values()
    each = {"int8": 1088, "affine8": 1152, "affine4": 640}.get(kind, 4096)
    ids = 2 * 12 * 8 + (12 * 8 if kind in ROTATING else 0)
    held = 12 * each
    if kind in TURBO_BITS:  # 9 of 8 vectors, each with words and lengths; 3 as they are
        lengths = 3 if kind in UNBIASED else 2
        held = 9 * 4 * 2 * (2 * 64 // 8 * TURBO_BITS[kind] + lengths * 4) + 3 * 4096
    assert sum(one.stop - one.start for one in entries) == held + ids


@sampled(5, "bfloat16-turbo3-cpu")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["growing", "rotating", "int8", "turbo3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(side, kind, dtype, tmp_path):
    """By law: the same bits go on, and another dtype is refused."""
    backends = {"reference": {}, "cpu": {"backend": "cpu"}, "mlx": {"backend": "mlx"}}
    make = reference.load if side == "reference" else fast.load
    model = make(DEMO, dtype=dtype, **backends[side])
    tokens, path = drawn(model), tmp_path / "cache.safetensors"
    cache = read(model, kind, tokens[:, :8])
    save_cache(path, model, cache, tokens[:, :8])
    loaded = load_cache(path, model)
    for one in (cache, loaded.cache):
        last = host(model, model.forward(tokens[:, 8:9], cache=one)).astype(np.float32)
    assert (last == host(model, model.forward(tokens[:, 8:9], cache=read(
        model, kind, tokens[:, :8]))).astype(np.float32)).all()  # fmt: skip
    with pytest.raises(InputError, match=f"holds '{dtype}', but the model computes in float32"):
        load_cache(path, make(DEMO, **backends[side]))


@pytest.mark.parametrize("side", SIDES)
def test_rows_of_unequal_length(side, tmp_path):
    """By law: padding and all, the batch goes on as it would have."""
    model = SIDES[side](FOLDERS["gemma4"])
    tokens, path = drawn(model, rows=2, count=9), tmp_path / "cache.safetensors"
    for kind in ("growing", "sliding", "rotating", "int8", "affine8"):
        cache = read(model, kind, tokens, lengths=[9, 4])
        save_cache(path, model, cache, tokens)
        found = [model.forward(tokens[:, :1], cache=one)
                 for one in (cache, load_cache(path, model).cache)]  # fmt: skip
        assert (host(model, found[0]) == host(model, found[1])).all()


def saved(tmp_path, kind="growing", count=8):
    model = reference.load(FOLDERS["qwen3 packed"])
    tokens, path = drawn(model), tmp_path / "cache.safetensors"
    save_cache(path, model, read(model, kind, tokens[:, :count]), tokens[0, :count])
    return model, tokens, path


CASES = [(8, 5, 5), (8, 8, 7), (8, 12, 8), (8, 1, None), (4, 4, 3)]


@sampled(12, "8-8-7-turbo4")
@pytest.mark.parametrize("kind", [*QUANTISED, "growing", "concatenating", "preallocated"])
@pytest.mark.parametrize(("held", "same", "kept"), CASES)
def test_the_common_beginning_is_not_read_again(kind, held, same, kept, tmp_path):
    """By hand: never all of a prompt, since logits are wanted; by loop, the rest.

    A turbo cache is read anew as it was before it was saved: a prompt at once sees no codes.
    """
    model, tokens, path = saved(tmp_path, kind, held)
    prompt = tokens[0, :same].tolist()
    if same in (5, 1):  # then another way
        prompt += [1 + int(tokens[0, same]) % 60, 7, 9]
        prompt = prompt if same == 5 else prompt[1:]
    loaded = load_cache(path, model)
    cache = reused(loaded, prompt)
    assert (cache.positions.length if cache else None) == kept
    assert loaded.cache.positions.length == held
    if cache is not None:
        found = model.forward([prompt[kept:]], cache=cache)[0, -1]
        seen = held if kind in TURBO_BITS else 0
        anew = read(model, kind, tokens[:, :seen])
        anew.settle(model.ops)
        anew.trim(max(0, seen - kept))
        wanted = model.forward([prompt[anew.positions.length :]], cache=anew)[0, -1]
        assert np.abs(found - wanted).max() < 5e-5 * wanted.std()
        assert holds_codes(cache) == (kind in QUANTISED)


def test_a_ring_that_cannot_go_back_is_read_anew(tmp_path):
    """By hand: 12 tokens in a ring of 6; the first 5 of them are wanted."""
    model, tokens, path = saved(tmp_path, "rotating", 12)
    loaded = load_cache(path, model)
    model.forward([[3]], cache=loaded.cache)
    loaded.cache.trim(1)
    assert reused(loaded, tokens[0, :5].tolist()) is None
    assert reused(loaded, [*tokens[0].tolist(), 5]).positions.length == 12


def test_who_made_it_is_known_by_its_weights_and_not_by_its_folder(tmp_path):
    model = reference.load(FOLDERS["qwen3"])
    copy = shutil.copytree(FOLDERS["qwen3"], tmp_path / "copy")
    assert identity(reference.load(copy)) == identity(model)
    assert identity(fast.load(copy, backend="cpu")) == identity(fast.load(copy, backend="mlx"))
    assert identity(fast.load(copy, backend="cpu")) == identity(model)
    others = {identity(reference.load(folder)) for folder in FOLDERS.values()}
    assert len(others) == len(FOLDERS)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert identity(reference.load(copy)) != identity(model)


@sampled(2, "qwen3_moe")
@pytest.mark.parametrize("name", ["qwen3", "qwen3 packed", "gemma4", "gpt2", "qwen3_moe"])
def test_any_changed_weight_is_another_model(name, tmp_path, monkeypatch):
    """By loop: one bit in the middle or at the end of a tensor, read in spans smaller than it."""
    monkeypatch.setattr("lockstep.parity.prompt_cache.identity.SPAN", 500)
    folder = shutil.copytree(FOLDERS[name], tmp_path / "copy")
    whole = identity(reference.load(folder))
    assert whole == identity(reference.load(FOLDERS[name]))
    changed = 0
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        for start, stop in places_of(SafetensorsFile(path)):
            for place in ((start + stop) // 2, stop - 1):
                path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
                assert identity(reference.load(folder)) != whole, place
                changed += 1
        path.write_bytes(data)
    assert changed == 12 and identity(reference.load(folder)) == whole


@pytest.mark.parametrize("of", ["groups", "blocks"])
def test_what_was_asked_of_a_tensor_changes_no_digest(of):
    """By law: a shape that a tensor keeps once it is known is none of its bytes."""
    tensor = BlockTensor(np.zeros((4, 36), np.uint8), "Q4_0")
    if of == "groups":
        tensor, _ = packed_matrix(1, 4, 64, bits=4, group=32)
    digests = set()
    for _ in range(2):
        digest = hashlib.sha256()
        add(digest, tensor)
        digests.add(digest.digest())
        assert tensor.shape == (4, 64)
    assert len(digests) == 1


def places_of(file):
    """Return where six tensors lie that every such model has, from the first to the last layer."""
    named = [name for name in sorted(file.entries) if "mlp" in name]
    return [(file.entries[name].start, file.entries[name].stop) for name in named[::-1][:6]]


def test_weights_are_read_once_for_all_caches_of_a_model(tmp_path, monkeypatch):
    """By hand: for saving and loading there are as many reads as tensors."""
    model = reference.load(FOLDERS["qwen3"])
    tokens, path, read_names = drawn(model), tmp_path / "cache.safetensors", []
    cache = read(model, "growing", tokens)
    plain = model.checkpoint.tensor
    monkeypatch.setattr(
        model.checkpoint, "tensor", lambda name: read_names.append(name) or plain(name)
    )
    save_cache(path, model, cache, tokens)
    load_cache(path, model)
    assert sorted(read_names) == sorted(model.checkpoint.names)


def test_an_adapter_makes_another_model():
    """By hand: caches of the base and of an adapter are not exchanged."""
    base = reference.load(MODELS / "affine_4_64")
    adapted = base.with_adapter(MODELS.parent / "adapters/mlx_lora")
    assert identity(adapted) != identity(base) == identity(adapted.with_adapter(None))


@pytest.mark.parametrize(
    ("held", "asked", "kept"), [(8, 16, 8), (16, 16, 8), (8, 17, None), (17, 16, None)]
)
def test_a_text_that_must_not_be_read_in_parts_is_read_anew(held, asked, kept, tmp_path):
    """By hand: beyond 16 tokens this model turns the first ones by how many come with them."""
    model, path = reference.load(FOLDERS["llama"]), tmp_path / "cache.safetensors"
    tokens = drawn(model, count=20)
    save_cache(path, model, read(model, "growing", tokens[:, :held]), tokens[:, :held])
    prompt = [*tokens[0, :8].tolist(), *[int(63 - one) for one in tokens[0, 8:asked]]]
    cache = reused(load_cache(path, model), prompt)
    assert (cache.positions.length if cache else None) == kept
    if cache is not None:
        found = model.forward([prompt[kept:]], cache=cache)[0, -1]
        wanted = model.forward([prompt])[0, -1]
        assert np.abs(found - wanted).max() < 5e-5 * wanted.std()


@pytest.mark.parametrize("said", ["256", "288", "999999999999"])
def test_the_room_of_a_file_is_bounded_and_that_of_the_caller_is_not(said, tmp_path):
    """By hand: the context is 256; who fills in masks asks for more, and saves that."""
    model, path = reference.load(FOLDERS["qwen3"]), tmp_path / "cache.safetensors"
    tokens = drawn(model)
    save_cache(path, model, read(model, "preallocated", tokens), tokens)
    file = SafetensorsFile(path)
    write(path, {name: file.read(name) for name in file.entries}, file.metadata | {"room": said})
    assert load_cache(path, model).cache.positions.room == 256
    assert load_cache(path, model, room=288).cache.positions.room == 288
    assert load_cache(path, model, room=3).cache.positions.room == 12


def test_what_a_file_should_hold_is_found_without_its_room():
    """By hand: 10^12 tokens are more than there is memory for."""
    model = reference.load(FOLDERS["qwen3"])
    found = expected(model, "preallocated", {"room": 10**12})
    assert set(found.values()) == {((1, 2, 1, 20), "F32")}
