"""Capture what every module of an mlx.nn model hands out, by classes that note it."""

# mlx runs on some machines only; without it the name means this file to the checker.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from lockstep.reference.checkpoint.errors import InputError

COMPILED = (
    "{count} modules ran while mx.compile traced them, such as {name}: what they handed out there"
    " has no values; call the model outside of mx.compile"
)
# What MLX says of arrays without values: computed after mx.compile has traced, and while it does.
VALUELESS = ("without a primitive", "during function transformations")
EMBEDDINGS = ("embed_tokens", "wte")


@contextmanager
def capture(
    module: Any,
    *,
    caches: bool = False,
    lengths: Sequence[int] | None = None,
    at: str | None = None,
) -> Iterator[Captured]:
    """Collect the outputs of the modules in `module` while a block runs; yields the dump.

        with parity.capture.mlx(model) as dump:
            model(ids)

    Names are the paths in `module`. Nothing is computed inside of the block that the model would
    not compute there: arrays are kept as they are, and computed when the block ends. So the dump is
    empty until then. With `caches` it also has what mlx-lm's caches hold after each pass, which
    grows with every step. Of a batch, `lengths` says how many tokens of each row are real, filled
    up on the right; what is filled up on the left, mlx-lm's batch caches say. Of the prompt the
    tokens `at` are kept, such as "last:8", None all; then its pass is computed when the model hands
    out its result, so that nothing else stays in memory. The result of the run keeps its bits, and
    every module its own class.
    Raises: InputError if nothing ran, or what was kept can be no model's run, or `at` is no place
    in the prompt, or this is a batch.
    """
    noted = Noted(module, caches, lengths, at)
    try:
        noted.install()
        yield noted.kept.dump
    finally:
        noted.remove()
    noted.finish()


class Noted:
    """The modules of one capture under classes that note, and what these saw.

    MLX looks `__call__` up in the class. A class of its own for each module, below the module's,
    leaves other models alone that share classes with this one, and an overridden `__call__` that
    calls its parent's is seen once.
    """

    def __init__(
        self,
        module: Any,
        caches: bool = False,
        lengths: Sequence[int] | None = None,
        at: str | None = None,
    ):
        self.root, self.lengths, self.at = module, lengths, at
        self.excerpt: Excerpt | None = None
        self.left: list[int] | None = None  # how many tokens fill up each row of a batch
        self.paths = attention_paths(path for path, _ in module.named_modules()) if caches else {}
        self.kept = Collection(type(module).__name__, "mlx")
        self.kept.about["library"] = type(module).__module__.partition(".")[0]
        self.own: list[tuple[Any, type]] = []
        self.found: list[tuple[str, Any]] = []  # in the order of the calls: name, array
        self.passes: list[Any] = []  # the token ids of each pass, as arrays
        self.ran: set[str] = set()
        self.prefix = ""
        self.logits: Any = None
        tables = {path: rows(part) for path, part in module.named_modules()}
        self.vocabulary = {size for size in tables.values() if size is not None}
        # What may hand out logits: the root, and models in it, whose embedding is a part's part.
        above = (
            path.rsplit(".", 2)[0] for path, size in tables.items() if size and path.count(".") > 1
        )
        self.whole = {"", *above}

    def install(self) -> None:
        for path, part in reversed(self.root.named_modules()):
            own = type(part)
            if callable(part):
                call = self.noting(path, own.__call__)
                taken = type(own.__name__, (own,), {"__call__": call, "__module__": own.__module__})
                object.__setattr__(part, "__class__", taken)
                self.own.append((part, own))

    def remove(self) -> None:
        for part, own in reversed(self.own):
            object.__setattr__(part, "__class__", own)

    def noting(self, path: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `__call__` that hands on what `call` does, and keeps it."""

        def noted(module: Any, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            if not path or (not self.passes and path.rpartition(".")[2] in EMBEDDINGS):
                self.begin(args, kwargs)
            spent = time.perf_counter() - start
            output = call(module, *args, **kwargs)
            start = time.perf_counter()
            self.note(path, output)
            if not path:
                self.note_caches(kwargs.get("cache", args[1] if len(args) > 1 else None))
                self.let_go()
            self.kept.dump.cost.seconds += spent + time.perf_counter() - start
            return output

        return noted

    def begin(self, args: Any, kwargs: dict[str, Any]) -> None:
        """Begin a pass of the whole model: the prompt, or a token that continues it.

        The ids may be lazy, so only their shape is looked at.
        """
        import mlx.core as mx

        found: Any = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        whole = isinstance(found, mx.array) and mx.issubdtype(found.dtype, mx.integer)
        ids = found if whole else None
        self.logits = None
        length = None if ids is None else ids.shape[-1]
        if not self.passes:
            self.left = left_padding(args, kwargs)
        self.prefix = self.kept.prefix(len(self.passes), length, goes_on=goes_on(kwargs))
        self.passes.append(None if ids is None else copy.copy(ids))

    def note(self, path: str, output: Any) -> None:
        """Keep a module's output, of several the first. Records and numbers are none."""
        import mlx.core as mx

        self.ran.add(path)
        if isinstance(output, list | tuple) and output:
            output = output[0]
        if not isinstance(output, mx.array) or (path in self.whole and output is self.logits):
            return
        name = path or "output"
        if is_logits(output, self.vocabulary) and path in self.whole:
            self.logits, name = output, "logits"
        # Arrays are immutable, but `y += 1` and `y[0] = 1` put another one behind the same name. A
        # copy of the handle is no computation and holds no second buffer.
        self.found.append((self.prefix + name, self.cut(name, copy.copy(output))))

    def cut(self, name: str, array: Any) -> Any:
        """Leave out the tokens of the prompt that are not asked for. Nothing is computed."""
        import mlx.core as mx

        if self.at is None or self.prefix:
            return array
        if self.excerpt is None:
            ids = self.passes[0] if self.passes else None
            row = None if ids is None or (ids.ndim > 1 and len(ids) > 1) else ids
            self.excerpt = tokens_at(self.at, None if row is None else row.shape[-1])
        axis = self.excerpt.axis(name, tuple(array.shape))
        return array if axis is None else mx.take(array, mx.array(self.excerpt.rows[0]), axis=axis)

    def let_go(self) -> None:
        """Compute what is kept of a prompt that was cut: until then all of it is in memory."""
        if self.excerpt is None or self.prefix:
            return
        self.logits = None
        for _, array in self.found:
            if not computed(array):
                return

    def note_caches(self, caches: Any) -> None:
        """Keep what each layer's cache holds now, where it is asked for. Nothing is computed."""
        import mlx.core as mx

        for number, path in self.paths.items():
            cache = caches[number] if caches is not None and number < len(caches) else None
            for part in ("keys", "values"):
                held: Any = getattr(cache, part, None)
                if isinstance(held, mx.array) and held.ndim == 4:
                    count = min(slots_of(cache), held.shape[2])
                    self.found.append((f"{self.prefix}{path}.cached_{part}", held[:, :, :count]))

    def finish(self) -> None:
        """Compute what is not computed yet, and put the dump together."""
        start = time.perf_counter()
        traced = [name for name, array in self.found if not self.kept_as_numbers(name, array)]
        passes = [None if ids is None else self.ids(ids) for ids in self.passes]
        rows = [None if ids is None else self.rows(ids, not n) for n, ids in enumerate(self.passes)]
        self.found.clear()
        if traced:
            self.kept.note(COMPILED.format(count=len(traced), name=traced[0]))
        if traced and not self.kept.tensors:
            raise InputError(self.kept.dump.path, self.kept.dump.notes[-1])
        self.kept.dump.cost.seconds += time.perf_counter() - start
        self.kept.fed(passes)
        self.kept.fed_rows(rows)
        if self.excerpt is not None:
            self.kept.about |= self.excerpt.said(batch=False)
        self.kept.finish()
        weighty = [path for path, part in self.root.named_modules() if has_weights(part)]
        if idle := [path for path in weighty if path not in self.ran]:
            self.kept.note(IDLE.format(count=len(idle), total=len(weighty), name=idle[0]))

    def kept_as_numbers(self, name: str, array: Any) -> bool:
        """Keep the values of an array; False if there are none."""
        kind = str(array.dtype).rpartition(".")[2]
        if kind not in TAGS:
            self.kept.note(f"{name} hands out {kind}, which no trace can hold")
            return True
        if not computed(array):
            return False
        self.kept.add(name, to_numpy(array))
        return True

    def ids(self, array: Any) -> list[int] | None:
        """Return the ids of one row; None for a batch."""
        one_row = array.ndim < 2 or len(array) == 1
        return array.reshape(-1).tolist() if one_row and computed(array) else None

    def rows(self, array: Any, first: bool) -> Rows | None:
        """Return the ids of each row of a batch, and which of them are real; None for one row."""
        if array.ndim != 2 or len(array) < 2 or not computed(array):
            return None
        count = array.shape[1]
        if first and self.left is not None and len(self.left) == len(array):
            return array.tolist(), [[place >= pad for place in range(count)] for pad in self.left]
        lengths = self.lengths if first and self.lengths is not None else [count] * len(array)
        if len(lengths) != len(array) or not all(0 < one <= count for one in lengths):
            what = f"lengths={[*lengths]}, but should be {len(array)} of 1..{count}"
            raise InputError(self.kept.dump.path, what)
        return array.tolist(), [[place < one for place in range(count)] for one in lengths]


def computed(array: Any) -> bool:
    """Compute an array; False if it has no values, as what mx.compile traces with.

    Any other error is the model's own, and is raised as it would be without a capture.
    """
    import mlx.core as mx

    try:
        mx.eval(array)
    except (RuntimeError, ValueError) as error:
        if not any(said in str(error) for said in VALUELESS):
            raise
        return False
    return True


def is_logits(output: Any, vocabulary: set[Any]) -> bool:
    return bool(output.ndim) and output.shape[-1] in vocabulary


def rows(module: Any) -> int | None:
    """Return how many tokens an embedding knows; None for other modules."""
    weight = module.get("weight")
    return weight.shape[0] if "Embedding" in type(module).__name__ and weight is not None else None


def goes_on(kwargs: dict[str, Any]) -> bool:
    """Say whether a call is handed caches that hold tokens, as mlx-lm's models are."""
    caches = kwargs.get("cache") or [None]
    return slots_of(caches[0]) > 0


def slots_of(cache: Any) -> int:
    """Return how many slots of a cache are filled. A batch's counts those of its rows apart."""
    offset = getattr(cache, "offset", 0)
    offset = offset if isinstance(offset, int) else getattr(cache, "_idx", 0)
    return offset if isinstance(offset, int) else 0


def left_padding(args: Any, kwargs: dict[str, Any]) -> list[int] | None:
    """Return what mlx-lm's batch caches know of padding, None of others."""
    caches = kwargs.get("cache", args[1] if len(args) > 1 else None) or [None]
    found = getattr(caches[0], "left_padding", None)
    return None if found is None else found.tolist()


def has_weights(module: Any) -> bool:
    import mlx.core as mx

    return any(isinstance(value, mx.array) for value in module.values())
