"""Bytes on the disk, against the packages that wrote them. By witness, live, and to the bit."""

import mlx.core as mx
import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from tests.ops_backends import BACKENDS
from tests.peers.conftest import STORAGES, draw_config
from tests.witnesses import build

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 4), (2, 3, 4)]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().unsqueeze(-1).view(torch.uint8).numpy().tobytes()


def random_bits(
    shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator
) -> torch.Tensor:
    """Return a tensor of random bits: NaN, infinities and subnormal numbers among them."""
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    octets = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return torch.from_numpy(octets).view(dtype).squeeze(-1)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + UNSIGNED, ids=str)
def test_tensors_of_the_safetensors_package(dtype, seed_for, tmp_path):
    rng = np.random.default_rng(seed_for("safetensors", str(dtype)))
    written = {f"t.{i}": random_bits(shape, dtype, rng) for i, shape in enumerate(SHAPES)}
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(written, path, metadata={"format": "pt", "ü": "\n"})
    file = SafetensorsFile(path)
    assert set(file.entries) == set(written)
    assert file.metadata == {"format": "pt", "ü": "\n"}
    for name, tensor in written.items():
        found = file.read(name)
        assert found.shape == tuple(tensor.shape)
        assert found.dtype.name == str(dtype).removeprefix("torch.")
        assert found.tobytes() == raw(tensor)


@pytest.mark.parametrize("shard", [None, "60KB"], ids=["single", "sharded"])
def test_checkpoints_of_transformers(tied, storage, shard, seed_for, tmp_path):
    seed = seed_for("checkpoint", tied, storage, shard)
    config = draw_config(seed) | {"tie_word_embeddings": tied}
    folder = tmp_path / "model"
    build.save(build.random_model(seed, **config), folder, dtype=storage, shard=shard)
    files = sorted(folder.glob("*.safetensors"))
    assert (len(files) > 1) == (shard is not None)
    checkpoint, read = open_checkpoint(folder), set()
    for path in files:
        with safe_open(path, framework="pt") as theirs:
            for name in theirs.keys():  # noqa: SIM118  (safe_open is no dict)
                found, expected = checkpoint.tensor(name), theirs.get_tensor(name)
                assert found.shape == tuple(expected.shape)
                assert found.tobytes() == raw(expected)
                read.add(name)
    assert read == set(checkpoint.names)


def spread(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return weights of many magnitudes, with a group of zeros and a constant one."""
    weights = rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 3, (shape[0], 1))
    weights[0, :32], weights[1, :32] = 0, 0.25
    return weights.astype(np.float32)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_unpacking_gives_the_bits_of_mlx(bits, group_size, storage, backend, seed_for):
    rng = np.random.default_rng(seed_for("unpack", bits, group_size, storage))
    weights = mx.array(spread((9, 384), rng)).astype(getattr(mx, storage))
    with mx.stream(mx.cpu):
        packed, scales, biases = mx.quantize(weights, group_size=group_size, bits=bits)
        wide = [packed, scales.astype(mx.float32), biases.astype(mx.float32)]
        expected = np.array(mx.dequantize(*wide, group_size=group_size, bits=bits))
    tensor = QuantizedTensor(*map(np.array, wide), bits, group_size, "affine")
    found = backend.dequantize_affine(tensor, rows=slice(None), dtype=np.dtype(np.float32))
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
