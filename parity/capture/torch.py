"""Capture what every module of a torch model hands out, by forward hooks."""

# torch is an extra, which a machine that checks types need not have; without it the name means this
# file to the checker.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from lockstep.parity.arrays import to_numpy
from lockstep.parity.capture.captured import (
    IDLE,
    Captured,
    Collection,
    Rows,
    attention_paths,
    tokens_at,
)
from lockstep.parity.dumps.trace_file import TAGS
from lockstep.parity.excerpts.excerpt import Excerpt

EAGER = "the model is compiled, and ran eagerly here: in compiled code no module hands out anything"
EMBEDDINGS = ("embed_tokens", "wte")


@contextmanager
def capture(module: Any, *, caches: bool = False, at: str | None = None) -> Iterator[Captured]:
    """Collect the outputs of the modules in `module` while a block runs; yields the dump.

        with parity.capture.torch(model) as dump:
            model(ids)

    Names are the paths in `module`. With `caches` the dump also has what a cache of transformers
    holds after each pass, which grows with every step. Of the prompt the tokens `at` are kept, such
    as "last:8", None all. The result of the run keeps its bits, and no hook stays.
    Raises: InputError if nothing ran, or all layers handed out the same values, or `at` is no place
    in the prompt, or this is a batch.
    """
    hooks = Hooks(module, caches, at)
    try:
        with eager(module, hooks.kept.dump.notes):
            hooks.install()
            yield hooks.kept.dump
    finally:
        hooks.remove()
    hooks.finish()


def eager(module: Any, notes: list[str]) -> AbstractContextManager[Any]:
    """Let compiled modules run as they were written; others are left alone."""
    import torch

    if not any(is_compiled(part) for part in module.modules()):
        return nullcontext()
    notes.append(EAGER)
    return torch.compiler.set_stance("force_eager")


def is_compiled(module: Any) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def goes_on(kwargs: Mapping[str, Any]) -> bool:
    """Say whether a call is handed a cache that holds tokens, as transformers' models are."""
    held = getattr(kwargs.get("past_key_values"), "get_seq_length", None)
    return held is not None and int(held()) > 0


def has_weights(module: Any) -> bool:
    return next(module.parameters(recurse=False), None) is not None


class Hooks:
    """The hooks of one capture, and what they saw of the pass that is running."""

    def __init__(self, module: Any, caches: bool = False, at: str | None = None):
        self.root, self.at = module, at
        self.excerpt: Excerpt | None = None
        self.paths = attention_paths(name for name, _ in module.named_modules()) if caches else {}
        inner = module
        while hasattr(inner, "_orig_mod") or type(inner).__name__ == "DataParallel":
            inner = getattr(inner, "_orig_mod", None) or inner.module
        self.kept = Collection(type(inner).__name__, "torch")
        if type(inner).__module__.startswith("transformers."):
            self.kept.about["library"] = "transformers"
        self.handles: list[Any] = []
        self.passes: list[list[int] | None] = []
        self.batches: list[Rows | None] = []
        self.ran: set[str] = set()
        self.prefix = ""
        self.logits: Any = None  # the last that a module of this pass handed out
        self.vocabulary = {getattr(part, "num_embeddings", None) for part in module.modules()}

    def install(self) -> None:
        begin = self.root.register_forward_pre_hook(self.begin, with_kwargs=True)
        self.handles.append(begin)
        for name, part in self.root.named_modules():
            hook = self.hook(name)
            self.handles.append(part.register_forward_hook(hook, with_kwargs=True))

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def finish(self) -> None:
        self.kept.fed(self.passes)
        self.kept.fed_rows(self.batches)
        if self.excerpt is not None:
            self.kept.about |= self.excerpt.said(batch=False)
        self.kept.finish()
        weighty = [name for name, part in self.root.named_modules() if has_weights(part)]
        if idle := [name for name in weighty if name not in self.ran]:
            self.kept.note(IDLE.format(count=len(idle), total=len(weighty), name=idle[0]))

    def begin(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Begin a pass of the whole model: the prompt, or a token that continues it."""
        found = kwargs.get("input_ids", args[0] if args else None)
        ids, rows = self.ids_of(found), self.rows_of(found, kwargs.get("attention_mask"))
        self.logits = None
        length = len(ids) if ids is not None else len(rows[0][0]) if rows else None
        self.batches.append(rows)
        self.prefix = self.kept.prefix(len(self.passes), length, goes_on=goes_on(kwargs))
        self.passes.append(ids)

    def ids_of(self, found: Any) -> list[int] | None:
        """Return the token ids of one row; None for anything else, such as embeddings."""
        import torch

        if not isinstance(found, torch.Tensor) or found.is_floating_point() or found.ndim > 2:
            return None
        if found.ndim == 2 and len(found) != 1:
            return None
        return [int(one) for one in found.reshape(-1).tolist()]

    def rows_of(self, found: Any, mask: Any) -> Rows | None:
        """Return the ids of each row of a batch, and which of them are real; None for one row."""
        import torch

        if not isinstance(found, torch.Tensor) or found.is_floating_point():
            return None
        if found.ndim != 2 or len(found) < 2 or not found.shape[1]:
            return None
        real = torch.ones_like(found, dtype=torch.bool)
        if isinstance(mask, torch.Tensor) and mask.ndim == 2 and len(mask) == len(found):
            real = mask[:, -found.shape[1] :].bool()
        return found.tolist(), real.tolist()

    def hook(self, path: str) -> Any:
        """Return the hook of one module. It returns nothing, so the output stays what it is."""

        def seen(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            start = time.perf_counter()
            self.ran.add(path)
            if not self.passes and path.rpartition(".")[2] in EMBEDDINGS and args:
                self.passes.append(self.ids_of(args[0]))  # forward() called past the root's hook
            name, tensor = self.handed_out(path, output)
            if name is not None:
                self.keep(self.prefix + name, tensor)
            if not path:
                self.keep_caches(kwargs.get("past_key_values"), output)
            self.kept.dump.cost.seconds += time.perf_counter() - start

        return seen

    def handed_out(self, path: str, output: Any) -> tuple[str | None, Any]:
        """Return the name and the tensor of an output, no name if there is nothing to keep.

        Of a tuple it is the first element. Of a model's own record it is the logits; what else a
        record has is the output of a part, which has a hook of its own.
        """
        import torch

        if isinstance(output, Mapping) or hasattr(output, "logits"):
            found = output.get("logits") if isinstance(output, Mapping) else output.logits
            return self.logits_named(path, found)
        if isinstance(output, list | tuple):
            output = output[0] if output else None
        if not isinstance(output, torch.Tensor):
            return None, None
        if path:
            return path, output
        return self.logits_named("", output, "output")

    def logits_named(self, path: str, found: Any, otherwise: str = "logits") -> tuple[Any, Any]:
        """Name what a whole model hands out, once: wrappers hand on what the model inside gave."""
        if found is None or found is self.logits:
            return None, None
        if otherwise == "output" and found.ndim and found.shape[-1] in self.vocabulary:
            otherwise = "logits"
        self.logits = found
        return (f"{path}.{otherwise}" if path else otherwise), found

    def keep_caches(self, handed_in: Any, output: Any) -> None:
        """Keep what the cache of a model holds now, where it is asked for and there is one."""
        cache = handed_in if handed_in is not None else getattr(output, "past_key_values", None)
        for number, layer in enumerate(getattr(cache, "layers", ())):
            path = self.paths.get(number)
            for part in ("keys", "values"):
                held = getattr(layer, part, None)
                if path is not None and held is not None and held.numel():
                    self.keep(f"{self.prefix}{path}.cached_{part}", held)

    def keep(self, name: str, tensor: Any) -> None:
        """Copy a tensor at once: the framework may write over it."""
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in TAGS or tensor.is_meta or tensor.is_sparse:
            what = f"{name} hands out {kind} on {tensor.device}, which no trace can hold"
            self.kept.note(what)
            return
        tensor = self.cut(name, tensor)
        copied = tensor.detach().to("cpu", copy=True).contiguous()
        self.kept.add(name, to_numpy(copied))

    def cut(self, name: str, tensor: Any) -> Any:
        """Leave out the tokens of the prompt that are not asked for, where the tensor lies."""
        import torch

        if self.at is None or self.prefix:
            return tensor
        if self.excerpt is None:
            ids = self.passes[0] if self.passes else None
            self.excerpt = tokens_at(self.at, None if ids is None else len(ids))
        axis = self.excerpt.axis(name, tuple(tensor.shape))
        if axis is None:
            return tensor
        return tensor.index_select(axis, torch.tensor(self.excerpt.rows[0], device=tensor.device))
