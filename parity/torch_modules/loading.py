"""Load a model of transformers: no network, no code of the checkpoint, no pickles."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lockstep.parity.cli.output import counted
from lockstep.parity.torch_modules.folder import checked_folder
from lockstep.reference.checkpoint.errors import InputError, show

SAFE = {
    "local_files_only": True,
    "trust_remote_code": False,
    "use_safetensors": True,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
}
UNLIMITED = 10**9  # positions, where no config says a limit


@dataclass(frozen=True)
class TorchModel:
    """A causal language model of transformers, and the folder that it came from."""

    path: Path
    dtype: str
    module: Any
    warnings: tuple[str, ...] = ()

    @property
    def sizes(self) -> Any:
        """The part of its config that speaks of text."""
        return self.module.config.get_text_config()


def load(model: str | Path, *, dtype: str) -> TorchModel:
    """Load the model of a folder with eager attention, its weights rounded to `dtype`.

    Raises: InputError if the folder is unsound, transformers has no such architecture, or a weight
    that it needs is not there, which transformers would draw at random.
    """
    path = checked_folder(model)
    with quiet():
        module, found = from_folder(path, dtype)
    absent, unused = sorted(found["missing_keys"]), sorted(found["unexpected_keys"])
    if absent:
        what = f"lacks {counted(absent, 'tensor')} that the model needs"
        raise InputError(path, what, show(absent[0], 60))
    notes = [f"{counted(unused, 'tensor')} unused, such as {show(one, 60)}" for one in unused[:1]]
    return TorchModel(path, dtype, module.eval(), tuple(notes))


def from_folder(path: Path, dtype: str) -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "output_loading_info": True, **SAFE}
    with refusing(path):
        loaded: Any = AutoModelForCausalLM.from_pretrained(path, **options)
    return loaded


def sizes_of(path: Path) -> SimpleNamespace:
    """Return how many tokens a model knows, and how many it takes, before any weight is read.

    Raises: InputError if transformers has no such architecture.
    """
    with quiet(), refusing(path):
        from transformers import AutoConfig

        sizes = AutoConfig.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        ).get_text_config()
        length = getattr(sizes, "max_position_embeddings", UNLIMITED)
        return SimpleNamespace(vocab_size=sizes.vocab_size, max_position_embeddings=length)


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn whatever transformers raises inside of a block into one line."""
    try:
        yield
    except Exception as error:  # its configs raise whatever they come upon
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(path, f"transformers cannot load it: {show(said, 200)}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from writing to the terminal inside of a block, if it is there at all."""
    try:
        from transformers.utils import logging
    except ImportError:
        yield
        return

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
