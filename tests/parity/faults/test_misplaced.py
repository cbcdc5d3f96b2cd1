"""Slots of a cache that are not read, or of one part alone in other places: by ports in loops."""

from itertools import pairwise

import numpy as np
import pytest

from lockstep.parity.faults.misplaced import SLOTS
from lockstep.reference import ops
from tests.parity.faults.hand_made import variant, wrong
from tests.parity.faults.test_kv_cache import (
    GROUPS,
    HEADS,
    KEYS,
    LENGTH,
    PROMPT,
    QUERIES,
    VALUES,
    WIDTH,
    attended,
    attending,
    turned,
)

ID = "kv-one-part-misplaced"
ONE_BY_ONE, MIXED = (6, 7, 8, 9), (6, 8, 9)  # a chunk of two among the second's steps


def never(buffer, new, at):
    pass


def right(buffer, new, at):
    buffer[at : at + len(new)] = new


def in_front(buffer, new, at):
    buffer[len(new) : at + len(new)] = buffer[:at].copy()
    buffer[: len(new)] = new


def late(buffer, new, at):
    room = buffer[at + 1 : at + 1 + len(new)]
    room[:] = new[: len(room)]


def early(buffer, new, at):
    buffer[at - 1 : at - 1 + len(new)] = new


def over(buffer, new, at):
    buffer[PROMPT : PROMPT + len(new)] = new


WRITTEN = {
    "of steps never stored": never,
    "of earlier steps never stored": never,
    "of steps in front of the others": in_front,
    "of steps a slot too late": late,
    "of steps a slot too early": early,
    "of steps over those of earlier ones": over,
}


def by_port(part, name, steps):
    """Attend token by token over two buffers, of which one is written wrongly in steps."""
    out, edges = np.zeros((HEADS, LENGTH, WIDTH)), (0, *steps, LENGTH)
    rows = {"keys": np.zeros((LENGTH, GROUPS, WIDTH)), "values": np.zeros((LENGTH, GROUPS, WIDTH))}
    for begins, ends in pairwise(edges):
        new = {
            "keys": np.array([[turned(KEYS[0, g, j], j) for g in range(GROUPS)]
                              for j in range(begins, ends)]),
            "values": VALUES[0].swapaxes(0, 1)[begins:ends],
        }  # fmt: skip
        for one, buffer in rows.items():
            write = WRITTEN[name] if one == part and begins else right
            write(buffer, new[one], begins)
        read = {one: buffer.copy() for one, buffer in rows.items()}
        if name == "of earlier steps never stored" and begins:
            read[part][begins:ends] = new[part]
        for token in range(begins, ends):
            for head in range(HEADS):
                group = head // (HEADS // GROUPS)
                keys, values = (read[one][: token + 1, group] for one in ("keys", "values"))
                powers = np.exp(0.5 * keys @ QUERIES[0, head, token])
                out[head, token] = powers @ values / powers.sum()
    return out[None]


@pytest.mark.parametrize("steps", [ONE_BY_ONE, MIXED], ids=str)
@pytest.mark.parametrize("part", ["keys", "values"])
@pytest.mark.parametrize("name", SLOTS)
def test_a_port_that_writes_one_of_both_elsewhere(name, part, steps):
    found = wrong(attending(window=None, steps=steps), variant(ID, f"{part} {name}"))
    np.testing.assert_allclose(found, by_port(part, name, steps), atol=1e-12)


@pytest.mark.parametrize("name", SLOTS)
def test_without_steps_nothing_is_misplaced(name):
    graph = attending(window=None, steps=())
    for part in ("keys", "values"):
        rewrite = variant(ID, f"{part} {name}")
        assert all(rewrite(call, graph) is None for call in graph.calls)


def test_one_step_alone_has_no_earlier_ones():
    graph = attending(window=None, steps=(PROMPT,))
    rewrite = variant(ID, "values of earlier steps never stored")
    assert all(rewrite(call, graph) is None for call in graph.calls)


@pytest.mark.parametrize("rows", [5, 7, 9])
@pytest.mark.parametrize("part", ["keys", "values"])
@pytest.mark.parametrize("name", SLOTS)
def test_the_first_tokens_alone_are_computed_where_a_step_is_cut(name, part, rows):
    """What lies behind them is in no slot: a port that had not got there would have none either."""
    graph = attending(window=None, steps=MIXED)
    calls = {one.number: variant(ID, f"{part} {name}")(one, graph) for one in graph.calls}
    scores = np.ones((1, HEADS, rows, rows))
    values, mask = VALUES[:, :, :rows], np.tril(np.ones((1, 1, rows, rows), bool))
    number = 5 if part == "keys" else 7
    changed = calls[number]
    assert changed is not None
    if part == "keys":
        (after,) = changed.after
        found = after(ops, scores)
        assert found.shape == scores.shape and set(np.unique(found)) <= {0.0, 1.0}
    else:
        assert changed.instead is not None
        found = changed.instead(ops, scores / rows, values, mask)
        assert found.shape == (1, HEADS, rows, WIDTH) and np.isfinite(found).all()


def test_a_cache_that_is_read_from_the_second_slot_on():
    """Beyond a window nothing is missing."""
    bug = variant("kv-cursor-not-advanced", "read from the second slot on")
    found = wrong(attending(window=None), bug)
    held = attended(lambda t: range(1, t + 1), window=None)
    np.testing.assert_allclose(found, held, atol=1e-12)
    assert all(bug(one, attending()) is None for one in attending().calls)
