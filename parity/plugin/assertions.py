"""What the fixture `lockstep` hands out: three assertions, each with one plain text on failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.parity.diff import diff
from lockstep.parity.dumps.dtype import dtype_of
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explain import explain
from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.parity.judging.result import Result, Tap
from lockstep.parity.plugin import failure
from lockstep.parity.plugin.given import dump_of, model_of, reference_dump
from lockstep.parity.plugin.held import held
from lockstep.parity.plugin.shelf import Shelf, shown
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model

MISSING = "there is no such golden yet\nmake it: pytest --lockstep-refresh, and commit it"
REFRESH = "if the change is meant: pytest --lockstep-refresh, and commit the golden"


@dataclass(frozen=True)
class Assertions:
    """The fixture `lockstep`. A dump is a path, a capture, or a mapping from names to arrays.

    Every method raises AssertionError where the port is wrong, and InputError for what cannot be
    compared: a bad file, no shared name, a prompt that nobody says.
    """

    shelf: Shelf

    def __repr__(self) -> str:  # pytest prints it above every failure
        return "<lockstep>"

    def reference(
        self, model: Any, tokens: Sequence[int], *, adapter: str | Path | None = None
    ) -> Dump:
        """Return what the reference computes from token ids, every tap of it, in float32."""
        return reference_dump(model_of(model, adapter), tokens)

    def assert_parity(
        self,
        left: Any,
        right: Any,
        *,
        model: Any = None,
        adapter: str | Path | None = None,
        tokens: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> None:
        """Fail unless `right`, the port, agrees with `left` tap by tap, as `lockstep diff` has it.

        With `model` every tap is judged by what the port itself fed it. `tokens` are the prompt of
        the port, and `dtype` what it computes in, where its dump does not say so.
        """
        __tracebackhide__ = True
        try:
            text = parity_failure(left, right, model, adapter, tokens, dtype)
        except InputError as error:
            raise error.with_traceback(None) from None
        if text is not None:
            raise AssertionError(text)

    def assert_clean(
        self,
        model: Any,
        dump: Any,
        *,
        adapter: str | Path | None = None,
        tokens: Sequence[int] | None = None,
        dtype: str | None = None,
        names: str | Path | None = None,
        config: str | Path | None = None,
        weights: str | Path | None = None,
    ) -> None:
        """Fail unless `lockstep explain` finds nothing wrong with the port that wrote a dump."""
        __tracebackhide__ = True
        try:
            loaded = model_of(model, adapter)
            port = dump_of(dump, tokens=tokens, dtype=dtype)
            found = explain(loaded, port, dtype=dtype, names=names, config=config, weights=weights)
            text = None if found.verdict == "clean" else diagnosis_failure(found, loaded, port)
        except InputError as error:
            raise error.with_traceback(None) from None
        if text is not None:
            raise AssertionError(text)

    def assert_golden(
        self,
        name: str,
        dump: Any,
        *,
        tokens: Sequence[int] | None = None,
        dtype: str | None = None,
        whole: bool = False,
    ) -> None:
        """Fail unless a run is what it was when its golden `name` was made, but for rounding.

        The golden holds sketches, or all tensors if `whole`. `dtype` is what the rounding is of,
        if not of the golden's own. With --lockstep-refresh the golden is written instead.
        """
        __tracebackhide__ = True
        try:
            text = self.golden_failure(
                name, dump_of(dump, tokens=tokens, dtype=dtype), whole, dtype
            )
        except InputError as error:
            raise error.with_traceback(None) from None
        if text is not None:
            raise AssertionError(text)

    def golden_failure(self, name: str, dump: Dump, whole: bool, dtype: str | None) -> str | None:
        path = self.shelf.place(name)
        if self.shelf.refresh:
            self.shelf.renew(path, dump, whole=whole, dtype=dtype)
            return None
        if not path.exists():
            return f"{shown(path)}: {MISSING}"
        result, judged_in = held(path, dump, whole=whole, dtype=dtype)
        if result.first_divergence is None and not result.notes:
            return None
        return failure.of_golden(result, judged_in, REFRESH)


def parity_failure(
    left: Any,
    right: Any,
    model: Any,
    adapter: str | Path | None,
    tokens: Sequence[int] | None,
    dtype: str | None,
) -> str | None:
    """Return the text of a failed comparison, None of one that holds."""
    sides = dump_of(left), dump_of(right, tokens=tokens, dtype=dtype)
    loaded = None if model is None else model_of(model, adapter)
    result = diff(*sides, model=loaded)
    first = result.first_divergence
    if first is None:
        return None
    return failure.of_parity(result, first, dtype_of(*sides, replayed=loaded is not None)[0])


def diagnosis_failure(found: Diagnosis, model: Model, dump: Dump) -> str:
    whole, first = first_wrong(found, model, dump)
    return failure.of_diagnosis(found, first, whole, found.dtype)


def first_wrong(found: Diagnosis, model: Model, dump: Dump) -> tuple[Result | None, Tap | None]:
    """Judge the dump tap by tap, and return the first wrong one of those that `explain` names."""
    blamed = {tap for fault in found.faults for tap in fault.taps}
    blamed |= {one.tap for one in found.unexplained}
    try:
        result = diff(dump, dump, model=model)
    except InputError:  # names that only a map tells: the diagnosis says enough
        return None, None
    # What `diff` measures against the left side is nothing here: both sides are the port.
    taps = [replace(tap, gain=None, cosine=None) for tap in result.taps]
    wrong = (tap for tap in taps if tap.status == "diverged" and tap.name in blamed)
    return replace(result, taps=taps), next(wrong, None)
