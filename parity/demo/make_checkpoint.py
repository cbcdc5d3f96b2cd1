"""Makes the demo checkpoint from nothing: corpus, tokenizer, training, 4-bit conversion, card.

    python -m lockstep.parity.demo.make_checkpoint --out DIR

Needs the extra `demo-training` (torch, transformers, mlx-lm); the product itself does not.
"""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.parity.demo import make_tokenizer, measure
from lockstep.parity.demo.make_corpus import Example, make_corpus
from lockstep.parity.demo.model_card import model_card
from lockstep.parity.demo.train import Recipe, make_model, train

QUESTIONS = Path(__file__).parent / "questions.json"

CORPUS_SEED = 2
TOKENS = 700
ROWS = 704  # A few more embedding rows than tokens, as Qwen3 has them.
RECIPE = Recipe(
    steps=560,
    quantized_steps=160,
    batch=192,
    peak_rate=3e-3,
    weight_decay=0.3,
    bits=4,
    group_size=64,
    seed=0,
)


def make_checkpoint(out: Path, *, threads: int) -> None:
    """Write the finished checkpoint folder; raise SystemExit if it fails the demo questions."""
    import torch

    if out.exists():
        raise SystemExit(f"{out}: already exists")
    torch.set_num_threads(threads)
    corpus = make_corpus(CORPUS_SEED)
    tokenizer = make_tokenizer.make_tokenizer(texts(corpus), TOKENS)
    ids = [tokenizer.token_to_id(token) for token in make_tokenizer.SPECIAL_TOKENS]
    model = make_model(ROWS, end_ids=(ids[2], ids[0]), seed=RECIPE.seed)
    train(model, tokenizer, corpus, RECIPE)
    with tempfile.TemporaryDirectory() as scratch:
        save_transformers(Path(scratch), model, tokenizer)
        convert(Path(scratch), out)
    score = measure.measure(out, corpus)
    (out / "README.md").unlink()
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    card = model_card(out, config, score, RECIPE, threads=threads)
    (out / "README.md").write_text(card, encoding="utf-8")
    print(measure.score_table(score), file=sys.stderr)
    if wrong := measure.wrong_answers(out, QUESTIONS):
        raise SystemExit("\n".join(wrong))


def texts(corpus: Sequence[Example]) -> list[str]:
    """Every text that training shows."""
    return [
        make_tokenizer.prompt(example.question) + example.answer
        for example in corpus
        if not example.held_out
    ]


def save_transformers(folder: Path, model: Any, tokenizer: Any) -> None:
    """Save model and tokenizer in bfloat16, as a model is published before conversion."""
    import torch
    from transformers import GenerationConfig

    end_of_text, _, turn_end = map(tokenizer.token_to_id, make_tokenizer.SPECIAL_TOKENS)
    model.generation_config = GenerationConfig(
        eos_token_id=[turn_end, end_of_text], pad_token_id=end_of_text, do_sample=False
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = make_tokenizer.tokenizer_config(model.config.max_position_embeddings)
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def convert(source: Path, out: Path) -> None:
    """Quantise with mlx-lm, exactly as the checkpoints of mlx-community are made."""
    import mlx_lm

    mlx_lm.convert(
        str(source), str(out), quantize=True, q_bits=RECIPE.bits, q_group_size=RECIPE.group_size
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train and convert the demo checkpoint.")
    parser.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet")
    parser.add_argument("--threads", type=int, default=2, help="more than are free is slower")
    options = parser.parse_args()
    make_checkpoint(options.out, threads=options.threads)


if __name__ == "__main__":
    main()
