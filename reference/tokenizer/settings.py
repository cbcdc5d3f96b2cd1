"""What `tokenizer_config.json` and `chat_template.jinja` say: special tokens and chat templates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.files import read_whole
from lockstep.reference.checkpoint.strict_json import JsonLimits, parse_json

CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
# Some configs repeat every added token, tens of thousands of them.
CONFIG_LIMITS = JsonLimits(size=64 << 20, entries=4_000_000, depth=64)
TEMPLATE_BYTES = 1 << 20
# transformers writes int(1e30) for "no limit" into most files. No other integer may be that long.
NO_LENGTH = re.compile(rb'("model_max_length"\s*:\s*)(1000000000000000019884624838656)(?=\s*[,}])')
# The names under which transformers hands special tokens to a template.
SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja source and the file that it came from."""

    source: str
    path: Path


@dataclass(frozen=True)
class Settings:
    """The special tokens by name, and the chat templates by name ("default", "tool_use")."""

    path: Path
    special_tokens: dict[str, str]
    templates: dict[str, ChatTemplate]


def read_settings(folder: Path) -> Settings:
    """Read the settings beside a tokenizer.json; both files may be absent.

    `chat_template.jinja` goes before the config's `chat_template`. Raises InputError for a file
    that is not valid and for special tokens and templates of a wrong type.
    """
    path = folder / CONFIG_FILE
    config: dict[str, Any] = {}
    if path.exists():
        config = _read_config(path)
    templates = _templates(config.get("chat_template"), path)
    file = folder / TEMPLATE_FILE
    if file.exists():
        templates = {"default": ChatTemplate(_read_text(file), file)}
    return Settings(path, _special_tokens(config, path), templates)


def _read_config(path: Path) -> dict[str, Any]:
    data = read_whole(path, limit=CONFIG_LIMITS.size)
    # As long as it was, so that the place of an error in the file stays right.
    data = NO_LENGTH.sub(lambda found: found[1] + b"null".ljust(len(found[2])), data)
    config = parse_json(data, path, subject="tokenizer config", limits=CONFIG_LIMITS)
    if not isinstance(config, dict):
        raise InputError(path, f"tokenizer config must be a JSON object, not {show(config, 40)}")
    return config


def _special_tokens(config: dict[str, Any], path: Path) -> dict[str, str]:
    tokens = {}
    for name in SPECIAL_TOKENS:
        value = config.get(name)
        # Either the text itself or a whole description of an added token.
        text = value.get("content") if isinstance(value, dict) else value
        if value is None:
            continue
        if not isinstance(text, str):
            raise InputError(path, f"{name} must be text, not {show(value)}")
        tokens[name] = text
    return tokens


def _templates(value: object, path: Path) -> dict[str, ChatTemplate]:
    if value is None:
        return {}
    if isinstance(value, str):
        value = [{"name": "default", "template": value}]
    if not isinstance(value, list):
        raise InputError(path, f"chat_template must be text or a list, not {show(value)}")
    templates: dict[str, ChatTemplate] = {}
    for entry in value:
        name, source = _named_template(entry, path)
        if name in templates:
            raise InputError(path, f"chat_template holds two templates named {show(name)}")
        templates[name] = ChatTemplate(source, path)
    return templates


def _named_template(entry: object, path: Path) -> tuple[str, str]:
    name = entry.get("name") if isinstance(entry, dict) else None
    source = entry.get("template") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not isinstance(source, str):
        raise InputError(path, f"chat_template entry must have name and template: {show(entry)}")
    if len(source.encode(errors="surrogatepass")) > TEMPLATE_BYTES:
        raise InputError(path, f"chat template is over the limit of {TEMPLATE_BYTES} bytes")
    return name, source


def _read_text(path: Path) -> str:
    try:
        text = read_whole(path, limit=TEMPLATE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise InputError(path, "chat template is not UTF-8", f"byte {error.start}") from None
    # As a file opened for text is read: every line ends with a line feed.
    return text.replace("\r\n", "\n").replace("\r", "\n")
