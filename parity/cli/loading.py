"""From the arguments of a command to a model and its tokens."""

from argparse import Namespace
from typing import Any

from lockstep.parity.cli.output import counted, warn
from lockstep.parity.collector import no_collector
from lockstep.parity.progress import Progress
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import context_length


def load(options: Namespace, backend: str, dtype: str, checkpoint: Any = None) -> Any:
    """Load MODEL on a backend, and say once what its files made remarkable.

    A `checkpoint` of it that is open already is taken as it is.
    """
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint

    ignored, adapter = options.ignore_config, getattr(options, "adapter", None)
    if checkpoint is None:
        checkpoint = open_checkpoint(options.model, ignore_config=ignored)
    activations = getattr(options, "activations", "float32")
    if backend == "reference":
        if activations != "float32":
            raise InputError("--activations", f"{activations} is for the backend cpu")
        model = reference_of(checkpoint, dtype, getattr(options, "tensor_parallel", 1))
        model = model if adapter is None else model.with_adapter(adapter, ignore_config=ignored)
    else:
        from lockstep.fast.backends import backend_named

        with no_collector():  # kernels are modules by the dozen
            chosen = backend_named(backend, dtype=dtype, device=None, activations=activations)
            model = load_fast(options, checkpoint, adapter, chosen, dtype)
    doubts = half_precision(model) + cache_doubts(options, model)
    warn([*doubts, *model.checkpoint.warnings, *model.adapters.warnings])
    return model


def cache_doubts(options: Namespace, model: Any) -> list[str]:
    """Warn of layers that the kind of cache that was asked for cannot serve."""
    if getattr(options, "cache", None) is None:
        return []
    from lockstep.reference.stores.building import warnings_of

    return [f"--cache {options.cache}: {one}" for one in warnings_of(options.cache, model.config)]


def half_precision(model: Any) -> list[str]:
    """Warn of packed weights in half precision on MLX's CPU device: it sums in half precision."""
    from lockstep.parity.generating.generation import is_packed

    backend = getattr(model, "backend", None)
    if backend is None or backend.name != "mlx" or model.dtype == "float32":
        return []
    if not is_packed(model.checkpoint) or backend.has_gpu():
        return []
    what = f"MLX sums packed weights in {model.dtype} on a CPU, which is far from the truth"
    return [f"{what}: compare in float32"]


def reference_of(checkpoint: Any, dtype: str, ranks: int) -> Any:
    from lockstep.reference import ops
    from lockstep.reference.model import Model

    if ranks > 1:
        from lockstep.parity.cli.ranks import load_here

        return load_here(checkpoint, ranks, dtype)
    return Model(checkpoint, dtype=dtype, ops=ops)


def load_fast(
    options: Namespace, checkpoint: Any, adapter: str | None, backend: Any, dtype: str
) -> Any:
    from lockstep.fast.model import Model
    from lockstep.reference.checkpoint.adapters import open_adapter

    ignored = options.ignore_config
    if adapter is not None:  # a bad one is refused before gigabytes are read
        open_adapter(adapter, checkpoint, ignore_config=ignored)
    with Progress(len(checkpoint.names)) as progress:
        if getattr(options, "tensor_parallel", 1) > 1:
            from lockstep.parity.cli.ranks import load_rank

            model = load_rank(options, checkpoint, backend, dtype, progress)
        else:
            budget = getattr(options, "expert_budget", None)
            told = {"backend": backend, "progress": progress, "expert_budget": budget}
            model = Model(checkpoint, dtype=dtype, **told)
    return model if adapter is None else model.with_adapter(adapter, ignore_config=ignored)


def prompt_tokens(options: Namespace, checkpoint: Any) -> list[int]:
    """Return the token ids that the arguments mean: given as such, or tokenized.

    Raises: InputError if there is none, one is beyond the vocabulary, or all are too many.
    """
    if options.tokens is not None:
        tokens = options.tokens
    else:
        from lockstep.parity.generating.tokenizer_once import tokenizer_once

        tokenizer: Any = tokenizer_once(checkpoint)
        if getattr(options, "chat", False):
            tokenizer, variables = chat_tokenizer(options, tokenizer)
            message = {"role": "user", "content": options.prompt}
            tokens = tokenizer.encode_chat([message], **variables)
        else:
            tokens = tokenizer.encode(options.prompt)
    if not tokens:
        raise InputError("prompt", "has no tokens, but should have at least one")
    check_ids(tokens, checkpoint)
    check_length(len(tokens), getattr(options, "decode", 0), checkpoint)
    return tokens


def chat_tokenizer(options: Namespace, tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    """Return a tokenizer that has a chat template, and what the template is told.

    Raises: InputError if there is no template, and if it does not know of thinking.
    """
    from lockstep.reference.tokenizer.chatml import knows_thinking, with_template

    tokenizer, thinking = with_template(tokenizer), getattr(options, "thinking", None)
    if thinking is None:
        return tokenizer, {}
    if not knows_thinking(tokenizer):
        flag = "--thinking" if thinking else "--no-thinking"
        raise InputError(flag, "this model's chat template has no enable_thinking")
    return tokenizer, {"enable_thinking": thinking}


def prompt_rows(options: Namespace, checkpoint: Any) -> list[list[int]]:
    """Return the prompts of a batch, each as `prompt_tokens` does; one if there is but one."""
    if options.tokens is None:
        return [prompt_tokens(options, checkpoint)]
    rows = (Namespace(**vars(options) | {"tokens": row}) for row in options.tokens)
    return [prompt_tokens(row, checkpoint) for row in rows]


def check_ids(tokens: list[int], checkpoint: Any) -> None:
    size = checkpoint.config.vocab_size
    for place, token in enumerate(tokens):
        if token >= size:
            where = f"token {place} of the prompt"
            what = f"token id {token}, but should be 0..{size - 1}"
            raise InputError(checkpoint.path, what, where)


def check_length(prompt: int, decode: int, checkpoint: Any) -> None:
    context = context_length(checkpoint.config)
    if prompt + decode > context:
        more = f" and {counted(decode, 'step')}" if decode else ""
        what = f"a prompt of {counted(prompt, 'token')}{more}, but the model's context is {context}"
        raise InputError(checkpoint.path, what, "max_position_embeddings")
