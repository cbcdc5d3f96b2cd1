"""Caches in 8 bits, keys by channel, or with what a step reads of itself. By loop."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.parity.faults.rounded_caches import BY_CHANNEL, OWN_TOO
from tests.parity.faults.hand_made import variant, wrong
from tests.parity.faults.test_kv_cache import (
    GROUPS,
    HEADS,
    KEYS,
    LENGTH,
    QUERIES,
    VALUES,
    WIDTH,
    attending,
    turned,
)

STEPS = (6, 8)  # three passes, of six tokens, of two, and of two
BY_HEAD = "8 bits, a scale for each head of a token"


def pass_of(token):
    return sum(token >= step for step in STEPS)


def stepped(number, largest):
    step = largest / 127
    return np.round(number / step) * step


def of_head(numbers):
    return np.array([stepped(one, np.abs(numbers).max()) for one in numbers])


def of_channel(group, token):
    """Round a turned key, each number by the largest of its place among the tokens of its pass."""
    same = [one for one in range(LENGTH) if pass_of(one) == pass_of(token)]
    beside = np.array([turned(KEYS[0, group, one], one) for one in same])
    own = turned(KEYS[0, group, token], token)
    return np.array([stepped(own[n], np.abs(beside[:, n]).max()) for n in range(WIDTH)])


def attended(rounded_key, own):
    """Average what each token sees; tokens of steps find it rounded, their own pass's as well if
    `own` is to be.
    """
    out = np.zeros((1, HEADS, LENGTH, WIDTH))
    for head in range(HEADS):
        group = head // (HEADS // GROUPS)
        for token in range(LENGTH):
            powers, sums = 0.0, np.zeros(WIDTH)
            for j in range(token + 1):
                key, value = turned(KEYS[0, group, j], j), VALUES[0, group, j]
                if pass_of(j) < pass_of(token) or (own and pass_of(token)):
                    key, value = rounded_key(group, j), of_head(value)
                power = np.exp(0.5 * QUERIES[0, head, token] @ key)
                powers, sums = powers + power, sums + power * value
            out[0, head, token] = sums / powers
    return out


@pytest.mark.parametrize(
    ("name", "key", "own"),
    [
        (BY_CHANNEL, of_channel, False),
        (BY_CHANNEL + OWN_TOO, of_channel, True),
        (BY_HEAD, lambda group, j: of_head(turned(KEYS[0, group, j], j)), False),
        (BY_HEAD + OWN_TOO, lambda group, j: of_head(turned(KEYS[0, group, j], j)), True),
    ],
)
def test_what_steps_read_of_a_cache_in_8_bits(name, key, own):
    graph = attending(window=None, steps=STEPS)
    graph = replace(graph, token_axes=((2,),) * len(graph.calls))
    found = wrong(graph, variant("kv-int8-noise", name))
    np.testing.assert_allclose(found, attended(key, own), atol=1e-6)


@pytest.mark.parametrize("name", [BY_CHANNEL, BY_CHANNEL + OWN_TOO, BY_HEAD + OWN_TOO])
def test_a_prompt_alone_reads_nothing_from_a_cache(name):
    graph, rewrite = attending(window=None, steps=()), variant("kv-int8-noise", name)
    assert all(rewrite(one, graph) is None for one in graph.calls)
