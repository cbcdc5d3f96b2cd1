"""One call of an operation, as data: what a fault rewrites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

EXPERTS = ("experts", "geglu_experts")  # operations that multiply by the experts of each token


@dataclass(frozen=True)
class Value:
    """What the call of this number returned."""

    number: int


@dataclass(frozen=True)
class Tensor:
    """A tensor of the checkpoint, or a stack of them that is read one matrix at a time.

    `rows` are those of a table that are asked for, None if all are.
    """

    name: str
    stacked: bool = False
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Constant:
    """Anything else that went in: token ids, positions, no bias, an adapter's factor.

    `rows` is the axis that runs over the tokens, None if none does. `name` says what an adapter's
    factor is, or which tensor of the checkpoint a whole one of an adapter stands for.
    """

    value: Any
    rows: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class Derived:
    """What `change(ops, *sources)` makes of other references, on its way into a call."""

    change: Callable[..., Any]
    sources: tuple[Ref, ...]


@dataclass(frozen=True)
class Again(Derived):
    """What the call of this number makes of another value, `first`, than its own first input.

    If the call is rewritten too, so is this: whoever turns values turns them as keys are turned.
    Of inputs that are `kept` it takes those of the call as it should be, and the operation too, if
    that is `right`.
    """

    number: int
    first: Ref
    bare: bool
    kept: tuple[tuple[int, Ref], ...] = ()
    right: Callable[..., Any] | None = None

    def as_in(self, call: Call) -> Again:
        """Return the same of the call as it is rewritten, if it still takes what it should."""
        if len(call.inputs) != call.arity:
            return self
        return again(call, self.first, bare=self.bare, kept=self.kept, right=self.right)


Ref = Value | Tensor | Constant | Derived


class Conflict(Exception):
    """Two rewrites that cannot both be there: nothing says which of them stands."""


@dataclass(frozen=True)
class Replacing:
    """A namespace of operations in which one is another."""

    ops: Any
    name: str
    operation: Callable[..., Any]

    def __getattr__(self, name: str) -> Any:
        return self.operation if name == self.name else getattr(self.ops, name)


@dataclass(frozen=True)
class Call:
    """One call: which operation, on what, and under which names its result is known.

    `place` is the path of the module it belongs to, without a layer: `self_attn.q_norm`. `instead`
    computes in its place, and `after` goes over what it returns; both take the namespace of
    operations first, so that a wrong operation rounds where the right ones do. A call that is
    `idle` hands its first input on, but whoever does with another one what it does, does it.
    """

    number: int
    op: str
    inputs: tuple[Ref, ...]
    options: Mapping[str, Any]
    taps: tuple[str, ...]
    place: str
    layer: int | None
    arity: int = 0  # inputs of the operation; a rewrite may bring more of them to its own
    instead: Callable[..., Any] | None = None
    after: tuple[Callable[..., Any], ...] = ()
    idle: bool = False

    def made(self, ops: Any, *inputs: Any, **options: Any) -> Any:
        """Return what this call gives, with whatever is wrong with it, of inputs that are known."""
        if self.idle:
            value = inputs[0]
        elif self.instead is None:
            value = getattr(ops, self.op)(*inputs, **options)
        else:
            value = self.instead(ops, *inputs, **options)
        for change in self.after:
            value = change(ops, value)
        return value

    def replaced(self, instead: Callable[..., Any]) -> Call:
        """Return this call with another operation: `instead(ops, *inputs, **options)`.

        Where there is one already, the new one finds it in the place of the right operation.
        Raises: Conflict if that takes inputs which the new one does not know, unless it says what
        to do `around` another.
        """
        if self.instead is None:
            return replace(self, instead=instead)
        if not hasattr(self.instead, "around") and len(self.inputs) != self.arity:
            raise Conflict(self.place)
        return replace(self, instead=nested(self.op, self.instead, instead))

    def followed(self, after: Callable[..., Any]) -> Call:
        """Return this call with something done to its result: `after(ops, result)`."""
        return replace(self, after=(*self.after, after))

    def with_options(self, **options: Any) -> Call:
        return replace(self, options={**self.options, **options})

    def with_input(self, index: int, ref: Ref) -> Call:
        """Return this call with another reference at one place of its inputs."""
        return replace(self, inputs=(*self.inputs[:index], ref, *self.inputs[index + 1 :]))

    def with_changed(self, index: int, change: Callable[..., Any], *more: Ref) -> Call:
        """Return this call with one input changed on its way in: `change(ops, input, *more)`."""
        return self.with_input(index, Derived(change, (self.inputs[index], *more)))

    def tensor(self, index: int) -> str | None:
        """Return the name of the tensor at one place of the inputs, however it is changed."""
        ref = self.inputs[index]
        while isinstance(ref, Derived):
            ref = ref.sources[0]
        return ref.name if isinstance(ref, Tensor) else None


def nested(name: str, inner: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """Return what finds `inner` in the place of the right operation of this name.

    What only lays out what goes in and comes out, or goes on from it, stays outside: `around`.
    """
    if hasattr(inner, "around"):
        return inner.around(instead)
    if hasattr(instead, "around"):
        return instead.around(inner)

    def both(ops: Any, *inputs: Any, **options: Any) -> Any:
        return instead(Replacing(ops, name, partial(inner, ops)), *inputs, **options)

    return both


def again(
    call: Call,
    first: Ref,
    *,
    bare: bool = False,
    kept: tuple[tuple[int, Ref], ...] = (),
    right: Callable[..., Any] | None = None,
) -> Again:
    """Return what a call makes of another first input, its others the same but those `kept`.

    If `bare`, without what is done to that input on its way in, and to the result; and by the
    `right` operation, if that is given.
    """
    instead = call.instead if right is None else right

    def made(ops: Any, *inputs: Any) -> Any:
        compute = getattr(ops, call.op) if instead is None else partial(instead, ops)
        value = compute(*inputs, **call.options)
        for change in () if bare else call.after:
            value = change(ops, value)
        return value

    for index, ref in kept:
        call = call.with_input(index, ref)
    own = first if bare else rerooted(call.inputs[0], first)
    return Again(made, (own, *call.inputs[1:]), call.number, first, bare, kept, right)


def rerooted(ref: Ref, root: Ref) -> Ref:
    """Return a reference that begins with another one and changes it as before."""
    if isinstance(ref, Derived):
        return Derived(ref.change, (rerooted(ref.sources[0], root), *ref.sources[1:]))
    return root


def with_again(ref: Ref, calls: Mapping[int, Call]) -> Ref:
    """Return a reference in which what other calls do is done as they are rewritten."""
    if isinstance(ref, Again):
        ref = ref.as_in(calls[ref.number]) if ref.number in calls else ref
    elif isinstance(ref, Derived):
        sources = tuple(with_again(one, calls) for one in ref.sources)
        changed = any(new is not old for new, old in zip(sources, ref.sources, strict=True))
        return Derived(ref.change, sources) if changed else ref
    return ref
