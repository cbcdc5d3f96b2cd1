"""Bugs that only together leave a call out are not what is wrong. By hand."""

import numpy as np
import pytest

from tests.parity.explaining.ports import explained, fault_of, ids, port

NAME = "models/untied_float32"


def instead_of(change):
    """Return the bug that a final norm gives `change(x)`, x being what goes into it."""

    def rewrite(call, graph):
        given = lambda ops, x, gain, *, eps: change(x).astype(x.dtype)  # noqa: E731
        return call.replaced(given) if call.taps == ("model.norm",) else None

    return fault_of("instead", rewrite)


@pytest.mark.parametrize(("share", "named"), [(1.0, set()), (1.5, {"instead", "more"})])
def test_two_that_undo_the_call_are_not_named(share, named):
    """One gives x plus something, the other takes that away again; or half of it."""
    some = np.float32(0.25)
    first = instead_of(lambda x: x + some)
    second = fault_of("more", only_behind(lambda ops, x: (x - share * some).astype(x.dtype)))
    taps = port(NAME, [first.variants[""], second.variants[""]], level="modules")
    found = explained(NAME, taps, [first, second])
    assert ids(found) == named
    assert found.verdict == ("faults" if named else "unknown")


def only_behind(change):
    def rewrite(call, graph):
        return call.followed(change) if call.taps == ("model.norm",) else None

    return rewrite


def test_one_that_leaves_it_out_by_itself_is_named():
    only = instead_of(lambda x: x)
    found = explained(NAME, port(NAME, [only.variants[""]]), [only])
    assert ids(found) == {"instead"}
