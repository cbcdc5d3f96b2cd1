"""The two ways to be fast: MLX on a device, NumPy on the processor. One backend a file."""

from typing import Any

from lockstep.reference.checkpoint.errors import InputError

DTYPES = ("float32", "bfloat16", "float16")
NAMES = ("fast", "mlx", "cpu")


def backend_named(
    name: str, *, dtype: str, device: str | None, activations: str = "float32"
) -> Any:
    """Return the backend called "mlx" or "cpu", or for "fast" the better one on this machine.

    On the processor `activations` may be "int16" or "int8" while they are multiplied by codes.
    Raises: InputError for another name, dtype, device or activations.
    """
    if dtype not in DTYPES:
        raise InputError("dtype", f"{dtype}, but a fast backend computes in {', '.join(DTYPES)}")
    if name not in NAMES:
        raise InputError("backend", f"{name}, but should be one of {', '.join(NAMES)}")
    if name == "cpu" or (name == "fast" and device is None and not has_gpu()):
        from lockstep.fast.backends.cpu import CpuBackend

        return CpuBackend(dtype, activations)
    if activations != "float32":
        raise InputError("activations", f"{activations} is for the backend cpu")
    if not has_mlx():
        raise InputError("backend", "mlx, but the mlx package is not installed")
    from lockstep.fast.backends.mlx import MlxBackend

    return MlxBackend(dtype, device)


def has_mlx() -> bool:
    try:
        import mlx.core  # noqa: F401  (only whether it loads matters)
    except ImportError:
        return False
    return True


def has_gpu() -> bool:
    """Say whether MLX is installed and has a GPU to run on."""
    if not has_mlx():
        return False
    import mlx.core as mx

    return mx.is_available(mx.gpu)
