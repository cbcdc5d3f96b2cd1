import mlx.core as mx

from lockstep.fast.ops.dequantize_blocks import dequantize_blocks
from lockstep.fast.shapes import Bias, Inputs, Outputs, Weight
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor


def linear(x: Inputs, weight: Weight, bias: Bias | None) -> Outputs:
    """Multiply by a stored matrix, packed or not, and add a bias if there is one.

    Differs from `reference.ops.linear`: packed weights are unpacked inside the product, group by
    group; blocks that MLX has no product for are expanded whole, a matrix at a time. On a CPU, MLX
    sums half precision in half precision: compare packed models in float32.
    """
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"linear: x has width {x.shape[-1]}, but the weight takes {weight.shape[1]}"
        )
    if isinstance(weight, QuantizedTensor | MinifloatTensor):
        out = quantized_product(x, weight).astype(x.dtype)
    elif isinstance(weight, BlockTensor):
        out = x @ dequantize_blocks(weight, rows=slice(None), dtype=x.dtype).T
    else:
        out = x @ weight.astype(x.dtype).T
    return out if bias is None else out + bias.astype(x.dtype)


def quantized_product(x: Inputs, weight: QuantizedTensor | MinifloatTensor) -> Outputs:
    if not x.size or not weight.shape[0]:  # MLX would divide by zero and end the process
        return mx.zeros((*x.shape[:-1], weight.shape[0]), x.dtype)
    return mx.quantized_matmul(
        x,
        weight.packed,
        weight.scales,
        weight.biases,
        transpose=True,
        group_size=weight.group_size,
        bits=weight.bits,
        mode=weight.mode,
    )
