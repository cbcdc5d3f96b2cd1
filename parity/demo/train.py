"""Trains the demo model with transformers on a CPU, in minutes."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.parity.demo.fake_quantize import fake_quantize
from lockstep.parity.demo.make_corpus import Example
from lockstep.parity.demo.make_tokenizer import END_OF_TEXT, TURN_END, prompt

# Arithmetic has to be worked out, so it is asked most often; facts are learnt by heart.
SHARES = {
    "sum": 8.0, "difference": 8.0, "count": 2.0, "number": 1.0, "day": 0.7, "month": 1.0,
    "opposite": 1.2, "colour": 0.8, "plural": 1.0, "capital": 1.0, "talk": 0.5, "story": 1.0,
}  # fmt: skip

IGNORED = -100


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train; the last `quantized_steps` see the quantised weights.

    Matrices whose names contain one of `wide` are stored in 8 bits, whatever the others are.
    """

    steps: int
    quantized_steps: int
    batch: int
    peak_rate: float
    weight_decay: float
    bits: int
    group_size: int
    seed: int
    wide: tuple[str, ...] = ()

    def bits_of(self, name: str) -> int:
        return 8 if any(part in name for part in self.wide) else self.bits


def make_model(vocab_size: int, *, end_ids: tuple[int, int], seed: int) -> Any:
    """An untrained Qwen3, deliberately not square: 4 heads of width 64 on a model width of 128."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    turn_end, end_of_text = end_ids
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        max_window_layers=4,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        initializer_range=0.05,
        eos_token_id=turn_end,
        pad_token_id=end_of_text,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    _spread_gains(model, seed=seed)
    return model


def _spread_gains(model: Any, *, seed: int) -> None:
    """Start the gains of q_norm and k_norm apart, as they are in Qwen3 itself.

    So short a training hardly moves them: started at one, a port that forgets them would not show.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            spread = torch.randn(parameter.shape, generator=generator)
            parameter.data = (0.8 * spread).exp()


def train(model: Any, tokenizer: Any, examples: Sequence[Example], recipe: Recipe) -> None:
    """Train in place on the examples that are not held out."""
    import torch

    examples = [example for example in examples if not example.held_out]
    tokens, labels = encode_all(tokenizer, examples)
    weights = torch.tensor(_sampling_weights(examples))
    generator = torch.Generator().manual_seed(recipe.seed)
    optimizer = _make_optimizer(model, recipe)
    started = time.monotonic()
    model.train()
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.peak_rate * _warm_then_fall(step / recipe.steps)
        rows = torch.multinomial(weights, recipe.batch, replacement=True, generator=generator)
        quantized = step >= recipe.steps - recipe.quantized_steps
        parameters = quantized_parameters(model, recipe) if quantized else {}
        loss = _loss(model, parameters, tokens[rows], labels[rows])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == recipe.steps - 1:
            seconds = time.monotonic() - started
            print(f"step {step:5} loss {loss.item():.4f} {seconds:5.0f} s", file=sys.stderr)
    model.eval()


def quantized_parameters(model: Any, recipe: Recipe) -> dict[str, Any]:
    """Every matrix of the model, by name, with the values that the packed checkpoint will hold."""
    return {
        name: fake_quantize(parameter, bits=recipe.bits_of(name), group_size=recipe.group_size)
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2
    }


def encode_all(tokenizer: Any, examples: Sequence[Example]) -> tuple[Any, Any]:
    """Tokens and labels, both (examples, longest); only the answer and its end are labelled."""
    import torch

    padding = tokenizer.token_to_id(END_OF_TEXT)
    pairs = [_encode(tokenizer, example) for example in examples]
    longest = max(len(question) + len(answer) for question, answer in pairs)
    tokens = torch.full((len(pairs), longest), padding)
    labels = torch.full((len(pairs), longest), IGNORED)
    for row, (question, answer) in enumerate(pairs):
        end = len(question) + len(answer)
        tokens[row, :end] = torch.tensor(question + answer)
        labels[row, len(question) : end] = torch.tensor(answer)
    return tokens, labels


def _encode(tokenizer: Any, example: Example) -> tuple[list[int], list[int]]:
    encode: Callable[[str], Any] = tokenizer.encode
    return encode(prompt(example.question)).ids, encode(example.answer + TURN_END).ids


def _sampling_weights(examples: Sequence[Example]) -> list[float]:
    counts = dict.fromkeys(SHARES, 0)
    for example in examples:
        counts[example.kind] += 1
    return [SHARES[example.kind] / counts[example.kind] for example in examples]


def _make_optimizer(model: Any, recipe: Recipe) -> Any:
    import torch

    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak_rate, betas=(0.9, 0.98))


def _warm_then_fall(progress: float) -> float:
    if progress < 0.05:
        return progress / 0.05
    return max(0.02, 1.0 - (progress - 0.05) / 0.95)


def _loss(model: Any, parameters: dict[str, Any], tokens: Any, labels: Any) -> Any:
    import torch

    longest = int((labels != IGNORED).nonzero()[:, 1].max()) + 1
    inputs, targets = tokens[:, : longest - 1], labels[:, 1:longest]
    call = {"input_ids": inputs, "use_cache": False}
    logits = torch.func.functional_call(model, parameters, (), call).logits
    chosen = targets != IGNORED
    return torch.nn.functional.cross_entropy(logits[chosen], targets[chosen])
