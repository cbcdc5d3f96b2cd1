"""The checkpoint's tensors as plain matrices, also in the forms that ports keep them in."""

import re
from collections.abc import Callable
from functools import partial

import numpy as np

from lockstep.parity.naming.families import split_end
from lockstep.parity.naming.names import unwrapped
from lockstep.reference.checkpoint.block_tensor import BlockTensor, Packed
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.ops.dequantize import dequantize

Shape = tuple[int, ...]
PACKED = (QuantizedTensor, MinifloatTensor, BlockTensor)
EXPERTS = re.compile(r"(?P<path>.*\.experts)\.(?P<part>gate|up|down)_proj\.weight")
# A fused tensor -> the parts whose rows stand in it one above the other.
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


class OwnTensors:
    """Names, shapes and values of a checkpoint; each is read when it is asked for.

    Beside the checkpoint's own names there are others for the same numbers: `parts` says which
    of the own ones each of those is made of.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint = checkpoint
        self.shapes: dict[str, Shape] = {}
        self.parts: dict[str, tuple[str, ...]] = {}
        self.makers: dict[str, Callable[[], np.ndarray]] = {}
        self.spellings: dict[str, str] = {}
        self.turned = any(checkpoint.source(name).transposed for name in checkpoint.names)
        for name in checkpoint.names:
            self.add(name, checkpoint.stored(name).shape, (name,), partial(self.whole, name))
            source = checkpoint.source(name)
            if len(source.names) == 1 and source.half is None:
                self.spellings[source.names[0]] = name
        for name in checkpoint.names:
            self.add_experts(name)
            self.add_fused(name)

    def add(
        self, name: str, shape: Shape, parts: tuple[str, ...], make: Callable[[], np.ndarray]
    ) -> None:
        self.shapes[name], self.parts[name], self.makers[name] = tuple(shape), parts, make

    def add_experts(self, name: str) -> None:
        """Name each expert by itself, and gate and up as one stack."""
        found = EXPERTS.fullmatch(name)
        if found is None:
            return
        path, part, shape = found["path"], found["part"], self.shapes[name]
        for expert in range(shape[0]):
            single = f"{path}.{expert}.{part}_proj.weight"
            self.add(single, shape[1:], (name,), partial(self.expert, name, expert))
        if part == "gate":
            both = (name, f"{path}.up_proj.weight")
            fused = (shape[0], 2 * shape[1], shape[2])
            self.add(f"{path}.gate_up_proj", fused, both, partial(self.joined, both))
        if part == "down":
            self.spellings[f"{path}.down_proj"] = name

    def add_fused(self, name: str) -> None:
        """Name the rows of several matrices as one matrix, and their biases as one."""
        module, end = split_end(name)
        for fused, inner in FUSED.items():
            if not module.endswith(inner[0]):
                continue
            path = module.removesuffix(inner[0])
            parts = tuple(f"{path}{part}.{end}" for part in inner)
            if all(part in self.shapes for part in parts):
                rows = sum(self.shapes[part][0] for part in parts)
                shape = (rows, *self.shapes[name][1:])
                self.add(f"{path}{fused}.{end}", shape, parts, partial(self.joined, parts))

    def read(self, name: str) -> np.ndarray:
        """Return the values of a tensor; what is packed comes unpacked in float32."""
        return self.makers[name]()

    def packed(self, name: str) -> Packed | None:
        """Return a tensor in its packed form, None if it is not packed or not the file's own."""
        if self.parts[name] != (name,) or not self.checkpoint.stored(name).packed:
            return None
        tensor = self.checkpoint.tensor(name)
        return tensor if isinstance(tensor, PACKED) else None

    def whole(self, name: str) -> np.ndarray:
        return plain(self.checkpoint.tensor(name))

    def expert(self, name: str, index: int) -> np.ndarray:
        return plain(self.checkpoint.stack(name)[index])

    def joined(self, parts: tuple[str, ...]) -> np.ndarray:
        return np.concatenate([self.whole(part) for part in parts], axis=-2 if len(
            self.shapes[parts[0]]) > 1 else 0)  # fmt: skip

    def named(self, theirs: str) -> str | None:
        """Return our name for one of theirs, as far as it is ours but for wrappers and ends."""
        module, end = split_end(theirs)
        for name in (theirs, f"{unwrapped(module)}.{end}", f"{unwrapped(theirs)}.weight"):
            name = self.spellings.get(name, name)
            if name in self.shapes:
                return name
        bare = unwrapped(theirs)
        return bare if bare in self.shapes else None

    def heads(self, name: str) -> tuple[int, int] | None:
        """Return how many heads the rows of q or k have and how many the other has, else None."""
        config = self.checkpoint.config
        found = re.search(r"layers\.([0-9]+)\.self_attn\.([qk])_proj\.", name)
        if found is None:
            return None
        queries, keys = config.num_attention_heads, config.num_key_value_heads
        if hasattr(config, "heads_of"):
            keys = config.heads_of(int(found[1]))[0]
        return (queries, keys) if found[2] == "q" else (keys, queries)


def plain(tensor: np.ndarray | Packed) -> np.ndarray:
    """Return a tensor's values; a stack of packed matrices is unpacked one by one."""
    if isinstance(tensor, np.ndarray):
        return tensor
    every = slice(None)
    if len(tensor.shape) == 2:
        return dequantize(tensor, rows=every, dtype=np.dtype(np.float32))
    return np.stack([plain(tensor[index]) for index in range(tensor.shape[0])])
