"""Run a torch model over a prompt and the steps after it, and show what every module hands out."""

# The peers are an extra, which a machine that checks types need not have.
# pyright: reportMissingImports=false

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lockstep.parity.naming.names import unwrapped
from lockstep.reference.checkpoint.errors import InputError

LOGITS = "logits"
CACHES = ("past_key_values", "cache_params")
LAST_PROJECTION = re.compile(r"(.*(?:attn|attention))\.(?:o_proj|out_proj|dense|c_proj|wo)")
NO_CACHE = "hands on no cache, so there is no step after the prompt"
HIDDEN = "last_hidden_state"  # of the record that a model without its head returns
Visit = Callable[[str, Any], Any]
"""Is given a tap's name and tensor; returns what to go on with in its place, or None."""


class Walk:
    """Runs `module` and calls `visit` on what each of its modules hands out, in that order, and on
    what enters the last projection of an attention.

    A module that only hands on what was visited already, as an attention does with its last
    projection, is no tap: `aliases` says whose value it has. Experts are left out, since their
    rows are no tokens. From its second call on in one pass a module is `name@2`, `name@3`.
    """

    def __init__(self, module: Any, visit: Visit):
        self.module, self.visit = module, visit
        self.aliases: dict[str, str] = {}
        self.kinds: dict[str, str] = {LOGITS: type(module).__name__}
        self.prefix = ""
        self.calls: dict[str, int] = {}
        self.seen: dict[int, tuple[Any, int, str]] = {}  # identity -> tensor, version, tap
        self.cache: dict[str, Any] = {}  # what a pass hands on to the next, as it takes it
        self.again = False
        self.is_tap: Callable[[str], bool] = lambda name: True

    def step(self, tokens: Sequence[int], number: int, *, more: bool) -> int:
        """Run one pass, the prompt or a token after it; return the greedy choice.

        `more` says that others follow, so that keys and values are to be kept.
        Raises: InputError if they do, and the model hands on nothing that they could go on from.
        """
        import torch

        self.prefix, self.calls = (f"step.{number}/" if number else ""), {}
        with torch.no_grad(), self.hooks():
            made = self.module(
                torch.tensor([list(tokens)]), use_cache=more or bool(self.cache), **self.cache
            )
        self.cache = {key: made[key] for key in CACHES if made.get(key) is not None}
        if more and not self.cache:
            raise InputError(type(self.module).__name__, NO_CACHE)
        instead = self.visit(self.prefix + LOGITS, made.logits)
        logits = made.logits if instead is None else instead
        return int(logits[0, -1].argmax())

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Install a hook on every module inside, and take all of them away again."""
        handles = []
        for path, part in self.module.named_modules():
            if path and not inside_experts(path):
                hook = self.hook(path, part)
                handles.append(part.register_forward_hook(hook, with_kwargs=True))
            if entered_by(path) is not None:
                handles.append(part.register_forward_pre_hook(self.entry(path)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def hook(self, path: str, part: Any) -> Any:
        """Return the hook of one module, which may hand out another tensor."""
        name = unwrapped(path)
        self.kinds[name] = type(part).__name__

        def seen(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
            first = handed_out(output)
            instead = None if first is None else self.shown(name, first, output)
            if instead is None:
                return None
            return self.handed_on(module, args, kwargs, output, instead)

        return seen

    def entry(self, path: str) -> Any:
        """Return the hook on what enters the last projection of an attention: its context."""
        name = entered_by(path) or path
        self.kinds[name] = type(self.module.get_submodule(path.rpartition(".")[0])).__name__

        def seen(module: Any, args: Any) -> Any:
            first = handed_out(args)
            instead = None if first is None else self.shown(name, first, args[:1])
            return None if instead is None else (instead, *args[1:])

        return seen

    def shown(self, name: str, first: Any, beside: Any) -> Any:
        """Show a tensor to the visitor, unless it was shown under another name; return what to go
        on with in its place, or None."""
        tap = self.named(name)
        if (owner := self.owner(first)) is not None and self.is_tap(owner):
            self.aliases.setdefault(tap, owner)
            return None
        instead = self.visit(tap, first)
        value = first if instead is None else instead
        self.seen[id(value)] = weakref.ref(value), value._version, tap
        self.beside(tap, beside)
        return instead

    def beside(self, tap: str, output: Any) -> None:
        """See all that a module hands out, of which the tap is the first."""

    def handed_on(
        self, module: Any, args: Any, kwargs: dict[str, Any], output: Any, instead: Any
    ) -> Any:
        """Return an output with another tensor in its first place, and what follows from that."""
        return exchanged(output, instead)

    def named(self, name: str) -> str:
        self.calls[name] = count = self.calls.get(name, 0) + (not self.again)
        return self.prefix + (name if count < 2 else f"{name}@{count}")

    def owner(self, tensor: Any) -> str | None:
        """Return the tap that this very tensor was visited as, unless it changed since."""
        known, version, tap = self.seen.get(id(tensor), (lambda: None, 0, ""))
        return tap if known() is tensor and tensor._version == version else None


def entered_by(path: str) -> str | None:
    """Return the tap of what enters a module, if that is the last projection of an attention."""
    found = LAST_PROJECTION.fullmatch(unwrapped(path))
    return f"{found[1]}.context" if found else None


def inside_experts(path: str) -> bool:
    return ".experts." in path


def handed_out(output: Any) -> Any:
    """Return the activation of an output: the tensor itself, or the first of several."""
    import torch

    if isinstance(output, Mapping):
        output = output.get(HIDDEN)
    elif isinstance(output, list | tuple):
        output = output[0] if output else None
    floating = isinstance(output, torch.Tensor) and output.is_floating_point()
    return output if floating else None


def exchanged(output: Any, instead: Any) -> Any:
    """Return an output of the same form with another tensor in its first place."""
    if isinstance(output, Mapping):
        output[HIDDEN] = instead  # pyright: ignore[reportIndexIssue]
        return output
    if isinstance(output, list | tuple):
        return (instead, *output[1:])
    return instead


def names_of(module: Any) -> list[str]:
    """Return the taps that a model may have, before it runs."""
    paths = [path for path, _ in module.named_modules() if path and not inside_experts(path)]
    contexts = [name for name in map(entered_by, paths) if name is not None]
    return [*map(unwrapped, paths), *contexts, LOGITS]
