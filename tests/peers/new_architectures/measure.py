"""Measure how right ports are judged by transformers' modules: the table of the docs' page.

Run it as `python -m tests.peers.new_architectures.measure`; it takes about two minutes.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model

from lockstep import fast, parity, reference
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.tracing import trace_run
from tests.peers.new_architectures.builds import TOKENS, make
from tests.peers.new_architectures.runs import published
from tests.witnesses import build

WITNESSES = Path(__file__).parents[2] / "witnesses"
FAMILIES = ("models", "llama", "gpt2", "qwen3_moe", "gemma4")
DTYPES = ("float32", "bfloat16", "float16")
DENSE = ("Olmo2", "Phi3", "Cohere2", "StableLm", "Glm4", "Granite")
SPARSE = ("Olmoe", "Mixtral", "DeepseekV3", "Qwen2Moe")  # MLX gathers on a CPU in float32 alone
OTHER_SIZES: dict[str, dict[str, Any]] = {
    "Phi3": {"sliding_window": None},  # mlx-lm has no window there
    "Glm4": {"head_dim": 12},
    "StableLm": {"num_attention_heads": 3, "num_key_value_heads": 3},
}


def ours(folder: Path) -> Iterator[tuple[Path, str, Dump]]:
    """Yield what each backend makes of each dense checkpoint that transformers reads too."""
    for family in FAMILIES:
        for model in sorted((WITNESSES / family).iterdir()):
            text = (model / "config.json").read_text() if model.is_dir() else '"quantization"'
            if '"quantization"' in text or model.name == "sparse":  # laid out as mlx-lm has it
                continue
            for dtype in DTYPES:
                for backend in ("reference", "cpu", "mlx"):
                    yield model, dtype, traced(model, dtype, backend, folder / "trace")


def traced(path: Path, dtype: str, backend: str, out: Path) -> Any:
    if backend == "reference":
        model: Any = reference.load(path, dtype=dtype)
    else:
        model = fast.load(path, dtype=dtype, backend=backend)
    trace_run(model, TOKENS, out, globs=None, decode=0)
    return out


def of_mlx_lm(folder: Path) -> Iterator[tuple[Path, str, Dump]]:
    """Yield what mlx-lm makes of architectures that Lockstep has not, from two seeds."""
    for name in (*DENSE, *SPARSE):
        for seed in (0, 1):
            home = folder / f"{name}-{seed}"
            path = make(name, home / "model", seed, **OTHER_SIZES.get(name, {}))
            (home / "published").mkdir()
            published(path, home / "published")
            for dtype in DTYPES if name in DENSE else DTYPES[:1]:
                model, _ = load_model(home / "published")
                model.set_dtype(getattr(mx, dtype))
                with parity.capture.mlx(model) as dump:
                    model(mx.array([TOKENS]))
                yield path, dtype, dump


def main() -> None:
    build.settle()
    with tempfile.TemporaryDirectory() as folder:
        for label, ports in (("ours", ours), ("mlx-lm", of_mlx_lm)):
            models: set[Path] = set()
            taps: dict[str, list[Any]] = {dtype: [] for dtype in DTYPES}
            for path, dtype, dump in ports(Path(folder)):
                models.add(path)
                found = parity.diff(dump, dump, model=path).taps
                taps[dtype] += [tap for tap in found if tap.ratio is not None]
            every = [tap for some in taps.values() for tap in some]
            wrong = sum(tap.status == "diverged" for tap in every)
            worst = {dtype: max(tap.ratio for tap in some) for dtype, some in taps.items()}
            shown = ", ".join(f"{dtype} {ratio:.2f}" for dtype, ratio in worst.items())
            print(f"{label}: {len(models)} models, {len(every)} taps, {wrong} wrong; {shown}")


if __name__ == "__main__":
    main()
