"""How many questions the finished checkpoint answers, measured on its quantised weights."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lockstep.parity.demo.make_corpus import COMPUTED, Example
from lockstep.parity.demo.make_tokenizer import prompt
from lockstep.parity.demo.train import IGNORED, encode_all

Score = dict[str, dict[str, tuple[int, int]]]


def measure(folder: Path, examples: Sequence[Example], *, batch: int = 256) -> Score:
    """Right answers and questions asked, by kind and by split, of the 4-bit weights in float32.

    An answer is right if greedy decoding gives it exactly, with its end. That is so if and only
    if each of its tokens is the likeliest after those before it: one pass over the text tells.
    MLX itself would be the better witness, but its quantised products on a CPU take many minutes.
    """
    import torch
    from tokenizers import Tokenizer

    model = dequantized_model(folder)
    tokens, labels = encode_all(Tokenizer.from_file(str(folder / "tokenizer.json")), examples)
    right: list[bool] = []
    for inputs, targets in zip(tokens.split(batch), labels.split(batch), strict=True):
        with torch.no_grad():
            likeliest = model(inputs[:, :-1]).logits.argmax(-1)
        targets = targets[:, 1:]
        right += ((likeliest == targets) | (targets == IGNORED)).all(1).tolist()
    return _count(examples, right)


def _count(examples: Iterable[Example], right: Iterable[bool]) -> Score:
    score: Score = {}
    for example, is_right in zip(examples, right, strict=True):
        split = "kept back" if example.held_out else "taught"
        by_split = score.setdefault(example.kind, {"taught": (0, 0), "kept back": (0, 0)})
        count, asked = by_split[split]
        by_split[split] = (count + is_right, asked + 1)
    return score


def score_table(score: Score) -> str:
    """The score as a Markdown table."""
    lines = ["| kind | taught | kept back | what was kept back |", "|---|---|---|---|"]
    for kind, by_split in score.items():
        taught, kept_back = (_fraction(*by_split[split]) for split in ("taught", "kept back"))
        what = "the fact, in all wordings" if kind in COMPUTED else "one wording of a taught fact"
        lines.append(f"| {kind} | {taught} | {kept_back} | {what} |")
    return "\n".join(lines)


def _fraction(right: int, asked: int) -> str:
    if asked == 0:
        return "none"
    return f"{right} of {asked} ({100 * right / asked:.1f} %)"


def wrong_answers(folder: Path, questions: Path) -> list[str]:
    """Ask every demo question, with mlx-lm on the 4-bit model and with transformers in float32.

    Returns one line for each answer that is not the expected one.
    """
    expected = json.loads(questions.read_text(encoding="utf-8"))
    witnesses = {"mlx-lm, 4 bits": ask_mlx(folder), "transformers, float32": ask_torch(folder)}
    return [
        f"{name}: {item['question']} -> {answer!r}, expected {item['answer']!r}"
        for name, ask in witnesses.items()
        for item in expected
        if (answer := ask(item["question"])) != item["answer"]
    ]


def ask_mlx(folder: Path) -> Any:
    """A function question -> answer, by mlx-lm's own greedy generation."""
    import mlx_lm

    model, tokenizer = mlx_lm.load(str(folder))[:2]

    def ask(question: str) -> str:
        turns = [{"role": "user", "content": question}]
        tokens = tokenizer.apply_chat_template(turns, add_generation_prompt=True)
        return mlx_lm.generate(model, tokenizer, tokens, max_tokens=40)

    return ask


def ask_torch(folder: Path) -> Any:
    """A function question -> answer, by transformers on the dequantised weights in float32."""
    import torch
    from tokenizers import Tokenizer

    model = dequantized_model(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def ask(question: str) -> str:
        tokens = torch.tensor([tokenizer.encode(prompt(question)).ids])
        with torch.no_grad():
            output = model.generate(tokens, max_new_tokens=40, do_sample=False)
        return tokenizer.decode(output[0, tokens.shape[1] :].tolist())

    return ask


def dequantized_model(folder: Path) -> Any:
    """The checkpoint as a transformers model in float32, every weight dequantised by MLX."""
    import transformers

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    state = dequantized(folder, config.pop("quantization"))
    config.pop("quantization_config", None)
    if config["model_type"] == "qwen3":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**config))
    else:
        model = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**config))
        join_experts(state)
    model.float().load_state_dict(state, strict=False)
    model.tie_weights()
    return model.eval()


def dequantized(folder: Path, rules: dict[str, Any]) -> dict[str, Any]:
    """Every tensor of a folder as torch's, in float32; `rules` say how each module is packed."""
    import mlx.core as mx
    import torch

    stored: Any = mx.load(str(folder / "model.safetensors"))
    state = {}
    for name, value in stored.items():
        if name.endswith((".scales", ".biases")):
            continue
        stem = name.removesuffix(".weight")
        if f"{stem}.scales" in stored:
            rule = rules.get(stem, rules)
            scales, biases = stored[f"{stem}.scales"], stored[f"{stem}.biases"]
            value = mx.dequantize(
                value,
                scales.astype(mx.float32),
                biases.astype(mx.float32),
                group_size=rule["group_size"],
                bits=rule["bits"],
            )
        state[name] = torch.tensor(value.astype(mx.float32).tolist())
    return state


def join_experts(state: dict[str, Any]) -> None:
    """Name the stacks of experts as transformers does, which keeps gate and up in one."""
    import torch

    for name in [name for name in state if name.endswith("switch_glu.gate_proj.weight")]:
        stem = name.removesuffix("switch_glu.gate_proj.weight")
        gate, up, down = (
            state.pop(f"{stem}switch_glu.{part}_proj.weight") for part in ("gate", "up", "down")
        )
        state[f"{stem}gate_up_proj"] = torch.cat([gate, up], dim=1)
        state[f"{stem}down_proj"] = down
