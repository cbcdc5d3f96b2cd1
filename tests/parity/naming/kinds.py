"""A small model of each kind, whose names differ."""

from pathlib import Path

WITNESSES = Path(__file__).parents[2] / "witnesses"
MODELS = {
    "llama": "models/untied_float32",
    "gpt2": "gpt2/original",
    "gemma4": "gemma4/dense",
    "moe": "qwen3_moe/separate",
}
