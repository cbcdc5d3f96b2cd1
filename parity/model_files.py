"""What goes with the weights: all that a folder of the hub holds for tokenizers and generation."""

from pathlib import Path

from lockstep.reference.checkpoint.config import CONFIG
from lockstep.reference.checkpoint.files import read_whole
from lockstep.reference.checkpoint.folder import exists_in, file_in

COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model",
    "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
    "processor_config.json",
)  # fmt: skip
COPY_LIMIT = 1 << 28


def copy_model_files(source: Path, target: Path) -> None:
    """Copy the config and what goes with the weights, byte for byte.

    Tensors are the last thing that is written, so that a bad file is told soon.
    """
    for name in (CONFIG, *COPIED):
        if exists_in(source, name):
            (target / name).write_bytes(_content(file_in(source, name)))


def _content(path: Path) -> bytes:
    empty = path.is_file() and path.stat().st_size == 0
    return b"" if empty else read_whole(path, limit=COPY_LIMIT)
