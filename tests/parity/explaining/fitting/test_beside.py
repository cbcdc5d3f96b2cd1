"""A number of another value beside a bug of the same operation. By hand: formulas in plain NumPy.

Each port computes all of its layers by such a formula, in the place of the right operation.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.parity.explaining.fitting import beside
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.numbers import NUMBERS
from lockstep.parity.faults.rewrites import option
from lockstep.parity.graph.call import EXPERTS
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

QWEN, MISTRAL, GEMMA = "models/untied_float32", "llama/mistral_window", "gemma4/sparse"
FAMILIES = ("norm", "rope", "mask", "moe")
# All have too many others to look through first, where tests are many.
KNOWN = [one for one in catalogue() if one.id in NUMBERS or one.family in FAMILIES]


def instead(op, formula):
    """Compute an operation by a formula."""

    def rewrite(call, graph):
        if call.op != op:
            return None
        return call.replaced(lambda ops, x, *more, **options: as_it_was(formula, x, more, options))

    return rewrite


def as_it_was(formula, x, more, options):
    return formula(x.astype(np.float64), *more, **options).astype(x.dtype)


def norm(eps, gain=lambda weight: weight):
    """Return the norm with another epsilon and another gain."""

    def formula(x, weight, **options):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain(weight)

    return instead("rms_norm", formula)


def plus_one(weight):
    return 1.0 + weight


def rope(base, sign=1):
    """Return the turn of heads (B, H, L, D) by another base, forwards or backwards."""

    def formula(x, positions, frequencies, **options):
        half = x.shape[-1] // 2
        angles = sign * np.arange(x.shape[2])[:, None] * base ** -(np.arange(half) / half)
        one, other = x[..., :half], x[..., half:]
        return np.concatenate(
            [one * np.cos(angles) - other * np.sin(angles),
             other * np.cos(angles) + one * np.sin(angles)], axis=-1,
        )  # fmt: skip

    return instead("rope", formula)


def softmax(window, scale):
    """Return the shares of so many keys, whose scores are multiplied."""

    def formula(scores, mask, **options):
        query, key = np.indices(scores.shape[-2:])
        seen = (key <= query) & (query - key < window)
        powers = np.where(seen, np.exp(scale * scores), 0.0)
        return powers / powers.sum(axis=-1, keepdims=True)

    return instead("softmax", formula)


def routing(count):
    """Return the likeliest experts, so many, by shares that do not add up to 1."""

    def formula(logits, **options):
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares = powers / powers.sum(axis=-1, keepdims=True)
        least = np.sort(shares, axis=-1)[..., -count, None]
        return np.where(shares >= least, shares, 0.0)

    return instead("top_k_routing", formula)


def running(count):
    """Let so many experts of a token run."""
    return option(EXPERTS, "per_token", lambda right: count)


def told(found):
    """Return what was named, without its layers."""
    assert not found.unexplained
    return sorted((bug.id, bug.variant) for bug in found.faults)


EPSILON = ("rms-eps-wrong", "eps = 0.004 for 0.001")
SENTINEL = "mask-sentinel-too-small"
TWICE = ("norm-plus-one-twice", None)


def test_an_epsilon_in_norms_with_one_too_much():
    found = explained(QWEN, port(QWEN, [norm(0.004, plus_one)]), faults=KNOWN)
    assert told(found) == [TWICE, EPSILON]
    assert [bug.layers for bug in found.faults] == [[0, 1], [0, 1]]


def test_both_are_to_be_fixed_and_account_for_all():
    """The fixes, the runs without each of them, and the JSON say both."""
    found = explained(QWEN, port(QWEN, [norm(0.004, plus_one)]), faults=KNOWN)
    assert all(bug.fix for bug in found.faults)
    *_, one, other, both = found.counterfactual
    assert sorted([*one["fixed"], *other["fixed"]]) == both["fixed"] == sorted(ids(found))
    assert both["logits_error"] < 1e-4 < min(one["logits_error"], other["logits_error"])
    said = [(bug["id"], bug["variant"]) for bug in found.to_json()["faults"]]
    assert sorted(said, key=str) == [TWICE, EPSILON]


def test_a_base_in_a_rope_that_turns_backwards():
    found = explained(QWEN, port(QWEN, [rope(50_000.0, -1)], level="taps"), faults=KNOWN)
    assert told(found) == [
        ("rope-sign-flipped", None), ("rope-theta-default", "base 50000 for 10000")
    ]  # fmt: skip


@sampled(1)
@pytest.mark.parametrize("scale", [0.2, 0.55])
@pytest.mark.parametrize(("window", "said"), [(10, "one key more"), (8, "one key less")])
def test_a_scale_of_scores_in_a_window_that_is_off_by_one(scale, window, said):
    found = explained(MISTRAL, port(MISTRAL, [softmax(window, scale * 10**0.5)]), faults=KNOWN)
    number = f"scores times {scale} for 0.3162278"
    assert told(found) == [("attn-scale-wrong", number), ("mask-swa-off-by-one", said)]


@pytest.mark.parametrize("count", [3, 4])
def test_more_experts_by_shares_that_do_not_add_up(count):
    found = explained(GEMMA, port(GEMMA, [routing(count), running(count)]), faults=KNOWN)
    said = "one expert more" if count == 3 else f"{count} experts for 2"
    assert told(found) == [("moe-renorm-missing", None), ("moe-top-k-wrong", said)]


def test_a_bug_alone_has_no_number():
    found = explained(QWEN, port(QWEN, [norm(0.001, plus_one)]), faults=KNOWN)
    assert told(found) == [TWICE]


def test_a_number_alone_has_no_bug():
    assert told(explained(QWEN, port(QWEN, [norm(0.004)]), faults=KNOWN)) == [EPSILON]


def uneven(scores, mask, **options):
    """See a key more at every other query, by scores that are multiplied."""
    query, key = np.indices(scores.shape[-2:])
    seen = (key <= query) & (query - key < 9 + query % 2)
    powers = np.where(seen, np.exp(0.6 * scores), 0.0)
    return powers / powers.sum(axis=-1, keepdims=True)


@sampled(2)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (QWEN, norm(0.004, lambda weight: weight + 0.3)),
        (QWEN, norm(0.004, np.sin)),
        (QWEN, norm(0.004, lambda weight: 0.7 * plus_one(weight))),
        (QWEN, norm(0.001, lambda weight: 0.7 * plus_one(weight))),
        (QWEN, rope(50_000.0, -1.1)),
        (MISTRAL, instead("softmax", uneven)),
    ],
    ids=["a bit more", "a sine", "a gain", "a gain alone", "too fast", "uneven"],
)
def test_a_number_beside_what_nobody_knows_is_not_named(name, wrong):
    found = explained(name, port(name, [wrong]), faults=KNOWN)
    assert (found.verdict, found.faults) == ("unknown", [])


def test_a_bug_that_is_not_in_the_catalogue_has_no_other_in_its_place():
    some = [one for one in KNOWN if one.id != TWICE[0]]
    found = explained(QWEN, port(QWEN, [norm(0.004, plus_one)]), faults=some)
    assert (found.verdict, found.faults) == ("unknown", [])


def test_a_value_next_to_the_right_one_is_no_number():
    """A norm that is off by less than a thousandth of its epsilon has another reason for it."""
    found = explained(QWEN, port(QWEN, [norm(0.0010005, plus_one)]), faults=KNOWN)
    assert EPSILON[0] not in ids(found)


def over_heads(scores, mask, **options):
    """Share out among the heads; what is masked has one score, and so one share, in all of them."""
    powers = np.exp(np.where(mask, scores, -4.69))
    return powers / powers.sum(axis=1, keepdims=True)


def test_a_value_that_changes_nothing_beside_a_bug_is_not_said():
    """Whatever the score of masked keys is, each head has the same share of them."""
    some = [replace(one, variants={}) if one.id == SENTINEL else one for one in KNOWN]
    some += [one for one in catalogue() if one.id == "softmax-wrong-axis"]
    found = explained(QWEN, port(QWEN, [instead("softmax", over_heads)], level="taps"), some)
    assert (found.verdict, found.faults) == ("unknown", [])


def in_layers(rewrite, *layers):
    return lambda call, graph: rewrite(call, graph) if call.layer in layers else None


def test_layers_that_are_right_speak_against_it():
    """An epsilon is wrong in every layer: what one alone has may be anything."""
    found = explained(QWEN, port(QWEN, [in_layers(norm(0.004, plus_one), 1)]), faults=KNOWN)
    assert (found.verdict, found.faults) == ("unknown", [])


def test_layers_have_one_value():
    """What fits one layer alone fits by chance, though all norms of the layer have it."""
    both = [in_layers(norm(eps, plus_one), layer) for eps, layer in ((0.004, 0), (0.02, 1))]
    found = explained(QWEN, port(QWEN, both), faults=KNOWN)
    assert (found.verdict, found.faults) == ("unknown", [])


@pytest.mark.parametrize(("dtype", "named"), [
    ("float32", [TWICE, ("rms-eps-wrong", "eps = 0.5 for 0.001")]), ("bfloat16", []),
])  # fmt: skip
def test_one_piece_alone_proves_it_where_digits_are_many(dtype, named):
    """The last norm has no like: few digits may be those of another bug and another number."""

    def wrong(call, graph):
        return norm(0.5, plus_one)(call, graph) if "model.norm" in call.taps else None

    found = explained(QWEN, port(QWEN, [wrong], dtype=dtype), faults=KNOWN)
    assert sorted((bug.id, bug.variant) for bug in found.faults) == named


@sampled(1)
@pytest.mark.parametrize(("dtype", "named"), [("float32", 2), ("float16", 0)])
def test_what_is_barely_wrong_in_few_digits_has_no_number_beside_a_bug(dtype, named, monkeypatch):
    """By witness: an epsilon outside of the root, in norms 1.7 noises off, was two other bugs."""
    taps = port(QWEN, [norm(0.5, plus_one)], dtype=dtype)
    assert len(explained(QWEN, taps, faults=KNOWN).faults) == 2
    monkeypatch.setattr(beside, "BARELY", 1e9)
    assert len(explained(QWEN, taps, faults=KNOWN).faults) == named


def test_two_values_that_do_as_well_are_none(monkeypatch):
    def twice(*given):
        for fault, one, value in paired(*given):
            yield from [(fault, one, value), (fault, one, 2 * value)]

    paired = beside.paired
    monkeypatch.setattr(beside, "paired", twice)
    found = explained(QWEN, port(QWEN, [norm(0.004, plus_one)]), faults=KNOWN)
    assert (found.verdict, found.faults) == ("unknown", [])


def test_without_work_nothing_is_fitted(monkeypatch):
    monkeypatch.setattr(beside, "SHARE", 0.0)
    found = explained(QWEN, port(QWEN, [norm(0.004, plus_one)]), faults=KNOWN)
    assert (found.verdict, found.faults) == ("unknown", [])


def test_a_pair_that_is_refused_leaves_what_was_named():
    """By hand: of four pieces the first had a name, the second got one, the third is right now."""
    pieces = [Piece(target, ()) for target in range(4)]
    case: Any = SimpleNamespace(
        explained=[(pieces[0], ["other"]), (pieces[1], ["new"])], open=[pieces[3]],
        right=[pieces[2]],
    )  # fmt: skip
    beside.withdraw(case, [(pieces[0], ["had"]), (pieces[2], ["had"])])  # pyright: ignore[reportArgumentType]
    assert case.explained == [(pieces[0], ["had"])]
    assert case.open == [pieces[3], pieces[1]]


@sampled(0)
def test_a_window_that_the_first_tokens_do_not_feel():
    """By hand: scores that are not scaled, and a window of 5 keys."""
    window = NUMBERS["mask-window-wrong"][0].becomes(5)
    every = [one for one in catalogue() if one in KNOWN or one.family == "attention"]
    found = explained(MISTRAL, port(MISTRAL, ["attn-scale-missing", window]), faults=every)
    assert ids(found) == {"attn-scale-missing", "mask-window-wrong"}
