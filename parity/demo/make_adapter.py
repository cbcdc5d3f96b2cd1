"""Makes the demo's adapter: by mlx-lm's own LoRA the demo's Gemma 4 learns to talk like a pirate.

    python -m lockstep.parity.demo.make_adapter --out DIR

Needs the extra `demo-training` (torch, transformers, mlx-lm); the product itself does not.
"""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lockstep.parity.demo import measure, stories
from lockstep.parity.demo.make_checkpoint import CORPUS_SEED
from lockstep.parity.demo.make_corpus import make_corpus

BASE = Path(__file__).parent / "gemma4"
SETTINGS = {
    "lora_parameters": {
        "rank": 8,
        "scale": 8.0,
        "dropout": 0.0,
        "keys": ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"],
    },
    "num_layers": 4,
    "iters": 120,
    "batch_size": 16,
    "learning_rate": 3e-4,
    "lr_schedule": {"name": "cosine_decay", "arguments": [3e-4, 120]},
    "mask_prompt": True,
    "max_seq_length": 64,
    "val_batches": 1,
    "steps_per_eval": 1000,
    "save_every": 1000,
    "seed": 0,
}
DATA, MODEL, ADAPTER = "data", "model", "pirate"


def make_adapter(out: Path) -> None:
    """Train on the demo's Gemma 4, with its packed weights unpacked: mlx-lm is faster so."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_conversations(folder / DATA)
        unpack(folder / MODEL)
        settings = folder / "settings.yaml"  # JSON is YAML
        settings.write_text(json.dumps(SETTINGS), encoding="utf-8")
        command = [sys.executable, "-m", "mlx_lm", "lora", "--train", "--config", settings.name]
        command += ["--model", MODEL, "--data", DATA, "--adapter-path", ADAPTER]
        subprocess.run(command, cwd=folder, check=True)
        shutil.copytree(folder / ADAPTER, out)


def write_conversations(folder: Path) -> None:
    """Write what the adapter is taught: all that the model knows, as a pirate would say it."""
    folder.mkdir()
    lines = [
        json.dumps({"prompt": example.question, "completion": as_pirate(example.answer)})
        for example in (*make_corpus(CORPUS_SEED), *stories.examples())
        if not example.held_out
    ]
    (folder / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "valid.jsonl").write_text("\n".join(lines[:16]), encoding="utf-8")


def as_pirate(answer: str) -> str:
    return f"{answer.removesuffix('.')}, arr!"


def unpack(folder: Path) -> None:
    """Write the demo's Gemma 4 in float32: on a CPU mlx-lm trains in nothing else."""
    from safetensors.torch import save_file

    folder.mkdir()
    config = json.loads((BASE / "config.json").read_text(encoding="utf-8"))
    state = measure.dequantized(BASE, config.pop("quantization"))
    del config["quantization_config"]
    save_file(state, folder / "model.safetensors", metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((BASE / name).read_bytes())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the adapter of the demo.")
    parser.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet")
    make_adapter(parser.parse_args().out)


if __name__ == "__main__":
    main()
