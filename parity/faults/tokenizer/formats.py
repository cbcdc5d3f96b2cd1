"""The turns of known families, written by hand as ports do; messages have `role` and `content`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Messages = list[dict[str, Any]]


def turns(before: str, behind: str, header: str, names: dict[str, str] | None = None) -> Callable:
    """Return a writer: `before` has {role}, `header` begins the answer."""

    def write(messages: Messages) -> str:
        said = [
            before.format(role=(names or {}).get(one["role"], one["role"]))
            + one["content"]
            + behind
            for one in messages
        ]
        return "".join(said) + header

    return write


def bracketed(messages: Messages) -> str:
    """As Llama 2 and Mistral: instructions in brackets."""
    said = "\n\n".join(one["content"] for one in messages if one["role"] != "assistant")
    return f"<s>[INST] {said} [/INST]"


FORMATS: dict[str, Callable[[Messages], str]] = {
    "ChatML": turns("<|im_start|>{role}\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "Llama 3": lambda said: "<|begin_of_text|>" + turns(
        "<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    )(said),
    "Gemma": lambda said: "<bos>" + turns(
        "<start_of_turn>{role}\n", "<end_of_turn>\n", "<start_of_turn>model\n",
        {"assistant": "model"},
    )(said),
    "Llama 2 and Mistral": bracketed,
    "Zephyr": turns("<|{role}|>\n", "</s>\n", "<|assistant|>\n"),
    "User: and Assistant:": turns(
        "{role}: ", "\n", "Assistant:", {"user": "User", "system": "System"}
    ),
    "Alpaca": turns(
        "### {role}:\n", "\n\n", "### Response:\n", {"user": "Instruction", "system": "System"}
    ),
}  # fmt: skip
