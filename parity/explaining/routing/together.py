"""Find a router's choices where tokens see later ones: none of them can be settled before others.

Every near choice of a token that is off is tried, layer by layer, the nearest first. It is the
port's if turning it leaves clearly less of the error of all tokens together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

Forced = dict[int, np.ndarray]  # of each router (B, L, X): 1 is chosen, -1 is not, 0 is as it is

LESS = 0.97  # of all squares, that a choice must leave less than, to be turned
ROUNDS = 4  # over all choices, since one that is turned may bring others near
MOST = 1000  # computations of the piece, until it is left: none turned may help


class Chosen(Protocol):
    """A piece with the choices that its routers must make.

    `errors` tells how far each token is off with some choices, (T,), and `off` where that is more
    than noise; `near_pairs` how far apart two experts are of whom a router may take either, (P,),
    and row, token, the chosen one and the other one of each such pair, (P, 4). `count` says how
    many values were computed.
    """

    forced: Forced
    count: int

    def errors(self, forced: Forced) -> np.ndarray: ...

    def off(self, errors: np.ndarray) -> np.ndarray: ...

    def near_pairs(self, number: int, forced: Forced) -> tuple[np.ndarray, np.ndarray]: ...


def settle_together(chosen: Chosen) -> np.ndarray | None:
    """Turn choices as long as that helps; return what all tokens are off by then, (T,).

    None if that takes more than `MOST` computations.
    """
    most = chosen.count + MOST
    errors = chosen.errors(chosen.forced)
    for _ in range(ROUNDS):
        before = errors
        for number in chosen.forced:
            errors = settle_router(chosen, number, errors, most)
            if errors is None:
                return None
        if errors is before:
            break
    return errors


def settle_router(chosen: Chosen, number: int, errors: np.ndarray, most: int) -> np.ndarray | None:
    """Do it for one router; None if that takes more computations than `most`, counted in all."""
    for token, turned in nearest_first(chosen, number):
        if chosen.count > most:
            return None
        found = chosen.errors(turned) if chosen.off(errors)[token] else errors
        if np.sum(found**2) < LESS * np.sum(errors**2):
            chosen.forced, errors = turned, found
    return errors


def nearest_first(chosen: Chosen, number: int) -> Iterator[tuple[int, Forced]]:
    """Yield the choices with one of a token's turned, on top of what was turned meanwhile."""
    gaps, pairs = chosen.near_pairs(number, chosen.forced)
    for row, token, out, into in pairs[np.argsort(gaps, kind="stable")]:
        choices = chosen.forced[number].copy()
        choices[row, token, [out, into]] = -1, 1
        yield token, chosen.forced | {number: choices}
