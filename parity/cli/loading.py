"""From the arguments of a command to a model and its tokens."""

from argparse import Namespace
from typing import Any

from lockstep.parity.cli.output import warn
from lockstep.reference.checkpoint.errors import InputError


def load(options: Namespace, backend: str, dtype: str) -> Any:
    """Load MODEL on a backend, and say once what its files made remarkable."""
    from lockstep.fast.model import load as load_fast
    from lockstep.reference.model import load as load_reference

    ignored = options.ignore_config
    if backend == "reference":
        model = load_reference(options.model, dtype=dtype, ignore_config=ignored)
    else:
        model = load_fast(options.model, dtype=dtype, ignore_config=ignored, backend=backend)
    warn(model.checkpoint.warnings)
    return model


def prompt_tokens(options: Namespace, checkpoint: Any) -> list[int]:
    """Return the token ids that the arguments mean: given as such, or tokenized.

    Raises: InputError if there is none, or one is beyond the vocabulary.
    """
    if options.tokens is not None:
        tokens = options.tokens
    else:
        from lockstep.reference.tokenizer.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(checkpoint.path)
        if getattr(options, "chat", False):
            tokens = tokenizer.encode_chat([{"role": "user", "content": options.prompt}])
        else:
            tokens = tokenizer.encode(options.prompt)
    if not tokens:
        raise InputError("prompt", "has no tokens, but should have at least one")
    check_ids(tokens, checkpoint)
    return tokens


def check_ids(tokens: list[int], checkpoint: Any) -> None:
    size = checkpoint.config.vocab_size
    for place, token in enumerate(tokens):
        if token >= size:
            where = f"token {place} of the prompt"
            raise InputError(checkpoint.path, f"token id {token}, but should be 0..{size - 1}", where)
