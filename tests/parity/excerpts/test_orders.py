"""As many tokens as heads: which axis is which. By hand, the two swapped in a right run."""

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.diff import diff
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.excerpts.orders import by_steps
from lockstep.parity.writers.lockstep_dump import TraceWriter
from tests.parity import builders

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
GLOBS = ["*.q_norm", "*.k_norm", "*_rope"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Four heads of queries, two of keys."""
    folder = tmp_path_factory.mktemp("x")
    return reference.load(builders.checkpoint(folder, num_hidden_layers=1))


@pytest.fixture(scope="module")
def runs(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, at in (("whole", None), ("two", "last:2"), ("four", "last:4"), ("tail", "last:6")):
        trace_run(model, TOKENS, folder / name, globs=GLOBS, decode=0, at=at)
    return folder


def written(path, source, change, *, only="", **about):
    """Write a dump again, as `change` makes the tensors whose names end with `only`."""
    dump = open_dump(source)
    said = {key: text for key, text in dump.about.items() if key in ("positions", "dtype")}
    with TraceWriter(path, tokens=TOKENS) as file:
        file.header["__metadata__"] |= said | about
        for name in dump.shapes:
            x = dump.read(name)
            x = np.ascontiguousarray(change(x)) if name.endswith(only) else x
            file.add(name, x, shape=x.shape)
    return path


def swapped(x):
    return x.swapaxes(1, 2)


@pytest.mark.parametrize("left", ["whole", "tail"])
@pytest.mark.parametrize(
    "some, kind", [("two", "k_rope"), ("two", "k_norm"), ("four", "q_rope"), ("four", "_norm")]
)
def test_a_right_port_whose_heads_lie_otherwise_is_right(model, runs, tmp_path, left, some, kind):
    """By hand: the values of a right run, two axes of which are swapped."""
    port = written(tmp_path / "port", runs / some, swapped, only=kind)
    for oracle in (None, model):
        found = diff(runs / left, port, model=oracle)
        assert {tap.status for tap in found.taps} == {"ok"} and found.compared == 4
        assert any("heads and tokens swapped in 1 tensors" in line for line in found.notes)


def test_a_left_side_of_other_order_is_read_as_it_is(model, runs, tmp_path):
    whole = written(tmp_path / "whole", runs / "whole", swapped, only="_rope")
    for oracle in (None, model):
        assert diff(whole, runs / "two", model=oracle).verdict == "parity"


def with_nan(x):
    return np.where(x == x[0, 1, 1, 3], np.float32(np.nan), x)


@pytest.mark.parametrize("order", [swapped, lambda x: x])
@pytest.mark.parametrize("bug", [lambda x: x * 1.1, lambda x: 0 * x, with_nan])
def test_a_wrong_port_stays_wrong_in_either_order(model, runs, tmp_path, order, bug):
    port = written(tmp_path / "port", runs / "two", lambda x: order(bug(x)), only="k_rope")
    found = diff(runs / "whole", port, model=model)
    assert [tap.name for tap in found.taps if tap.status == "diverged"] == [
        "model.layers.0.self_attn.k_rope"
    ]


def test_what_neither_order_fits_is_not_blamed_but_named(model, runs, tmp_path):
    noise = np.random.default_rng(1).standard_normal((1, 2, 2, 16)).astype(np.float32)
    port = written(tmp_path / "port", runs / "two", lambda x: noise, only="k_rope")
    found = diff(runs / "whole", port, model=model)
    assert {tap.name for tap in found.taps if tap.status != "ok"} == {
        "model.layers.0.self_attn.k_rope"
    }
    assert found.taps[-1].status == "not judged" and "as many tokens as heads" in (
        found.taps[-1].place or ""
    )
    assert found.unmatched == []


def test_steps_of_one_token_tell_the_order():
    """By hand: (B, H, L, D) and (B, L, H, D), whose steps have one token."""
    path = "model.layers.0.self_attn."
    square, one = (1, 4, 4, 8), f"step.1/{path}"
    shapes = {f"{path}q_rope": square, f"{path}q_norm": square, f"{path}k_rope": (2, 3),
              f"{one}q_rope": (1, 4, 1, 8), f"{one}q_norm": (1, 1, 4, 8)}  # fmt: skip
    assert by_steps(shapes) == {f"{path}q_rope": 2, f"{path}q_norm": 1}


def test_norms_that_lie_heads_first_are_cut_by_tokens(model, runs, tmp_path):
    """A module that norms behind the transpose: whole, against some tokens."""
    whole = written(tmp_path / "whole", runs / "whole", swapped, only="_norm")
    tail = written(tmp_path / "tail", runs / "tail", swapped, only="_norm")
    for sides in ((whole, runs / "tail"), (runs / "whole", tail), (whole, tail)):
        assert diff(*sides, model=model).verdict == "parity"
