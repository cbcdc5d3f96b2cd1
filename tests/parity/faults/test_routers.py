"""The wrong ways to choose experts and to weigh them. By hand.

The logits are ln 1, ln 2, ln 3 and ln 4, so the probabilities are 0.1, 0.2, 0.3 and 0.4, and a
sigmoid of ln p is p / (1 + p).
"""

import numpy as np
import pytest

from lockstep.parity.faults.routers import Routing, next_best
from lockstep.parity.graph import Conflict
from lockstep.parity.noise import namespace
from lockstep.parity.noise.conventions import ROUTING, SUMS
from lockstep.reference.checkpoint.stack import Stack
from tests.parity.faults.hand_made import call, graph_of, one_call, variant, wrong

LOGITS = np.log([[[1.0, 2.0, 3.0, 4.0]]])
SUM = 0.7
CASES = {
    ("moe-renorm-missing", "", True): [0, 0, 0.3, 0.4],
    ("moe-renorm-spurious", "", False): [0, 0, 3 / 7, 4 / 7],
    ("moe-raw-logits-as-weights", "as they are", False): [0, 0, np.log(3), np.log(4)],
    ("moe-raw-logits-as-weights", "as they are", True): [0, 0, np.log(3), np.log(4)],
    ("moe-raw-logits-as-weights", "divided by their sum", True): [
        0, 0, np.log(3) / np.log(12), np.log(4) / np.log(12)
    ],
    ("moe-sigmoid-vs-softmax", "sigmoid for softmax", False): [0, 0, 3 / 4, 4 / 5],
    ("moe-sigmoid-vs-softmax", "sigmoid for softmax", True): [0, 0, 15 / 31, 16 / 31],
    ("moe-selects-lowest", "", True): [1 / 3, 2 / 3, 0, 0],
    ("moe-selects-lowest", "", False): [0.1, 0.2, 0, 0],
    ("moe-topk-partition-kth", "the next best for the last", False): [0, 0.2, 0, 0.4],
    ("moe-topk-partition-kth", "the next best for the last but 1", False): [0, 0.2, 0.3, 0],
    ("moe-top-k-wrong", "one expert", False): [0, 0, 0, 0.4],
    ("moe-top-k-wrong", "one expert fewer", True): [0, 0, 0, 1],
    ("moe-top-k-wrong", "one expert more", True): [0, 2 / 9, 3 / 9, 4 / 9],
    ("moe-renorm-epsilon", "eps = 1e-05", True): [0, 0, 0.3 / (SUM + 1e-5), 0.4 / (SUM + 1e-5)],
    ("moe-weights-misplaced", "in reverse", False): [0, 0, 0.4, 0.3],
    ("moe-weights-misplaced", "ids rising, weights falling", True): [0, 0, 4 / 7, 3 / 7],
    ("moe-weights-misplaced", "the first one's for all", False): [0, 0, 0.4, 0.4],
    # the ids of the best are 3 and 2, which rise the other way
    ("moe-weights-misplaced", "weights by rising ids, experts by falling weights", False): [
        0, 0, 0.4, 0.3
    ],
    ("moe-sum-missing", "that of the highest number", False): [0, 0, 0, 0.4],
    ("moe-sum-missing", "that of the lowest number", False): [0, 0, 0.3, 0],
    ("moe-sum-missing", "the last of the best", True): [0, 0, 3 / 7, 0],
    ("moe-weights-missing", "added", True): [0, 0, 1, 1],
    ("moe-weights-missing", "averaged", False): [0, 0, 0.5, 0.5],
    ("moe-last-choice-lost", "", True): [0, 0, 0, 4 / 7],
    ("moe-softmax-twice", "", True): [
        0, 0, 1 / (1 + np.exp(0.1)), 1 / (1 + np.exp(-0.1))
    ],
    # 0.3 and 0.4 are 0.30078125 and 0.400390625 in bfloat16
    ("moe-router-precision", "weights in bfloat16", False): [0, 0, 0.30078125, 0.400390625],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrong_routing_is_what_it_says(case):
    id, name, normalize = case
    found = one_call(id, name, "top_k_routing", LOGITS, per_token=2, normalize=normalize)
    np.testing.assert_allclose(found[0, 0], CASES[case], rtol=1e-12)


def test_weights_by_rising_ids_of_three_experts():
    """By hand: experts 2, 0 and 3 by falling weights; sorted, those of 0, 2 and 3 come first."""
    logits = np.log([[[0.3, 0.1, 0.4, 0.2]]])
    name = "weights by rising ids, experts by falling weights"
    found = one_call("moe-weights-misplaced", name, "top_k_routing", logits, per_token=3,
                     normalize=False)  # fmt: skip
    np.testing.assert_allclose(found[0, 0], [0.4, 0, 0.3, 0.2], rtol=1e-12)


def test_each_expert_is_shared_out_among_tokens():
    """By hand: of two tokens, an expert's logits ln 1 and ln 3 give 1/4 and 3/4."""
    logits = np.log([[[1.0, 3.0, 2.0], [3.0, 1.0, 2.0]]])
    found = one_call("moe-softmax-wrong-axis", "", "top_k_routing", logits, per_token=2,
                     normalize=False)  # fmt: skip
    np.testing.assert_allclose(found[0], [[0, 0.75, 0.5], [0.75, 0, 0.5]], rtol=1e-12)


def test_the_best_alone_of_three():
    """Of two it is all but the last, which has a name."""
    name = ("moe-sum-missing", "the best")
    found = one_call(*name, "top_k_routing", LOGITS, per_token=3, normalize=True)
    np.testing.assert_allclose(found[0, 0], [0, 0, 0, 4 / 9], rtol=1e-12)
    graph = graph_of(call(0, "top_k_routing", LOGITS, per_token=2, normalize=True))
    assert variant(*name)(graph.calls[0], graph) is None


@pytest.mark.parametrize(("lost", "per_token"), [(0, 4), (0, 5), (2, 2), (3, 1)])
def test_the_next_best_needs_one_that_misses_and_one_that_makes_it(lost, per_token):
    """Of four experts: with all chosen none is next, and of two none is the last but two."""
    with pytest.raises(ValueError, match="of 4 experts"):
        next_best(lost)(np.exp(LOGITS) / 10, per_token)


def test_a_wrong_choice_and_wrong_weights_are_both_there():
    """By hand: the best and the third best, each by its sigmoid, and what is added to their sum."""
    wrong_ones = [
        variant("moe-topk-partition-kth", "the next best for the last"),
        variant("moe-sigmoid-vs-softmax", "sigmoid for softmax"),
        variant("moe-renorm-epsilon", "eps = 1e-05"),
    ]
    graph = graph_of(call(0, "top_k_routing", LOGITS, per_token=2, normalize=True))

    def all_of_them(one, graph):
        for rewrite in wrong_ones:
            one = rewrite(one, graph)
        return one

    total = 2 / 3 + 4 / 5 + 1e-5
    expected = [0, 2 / 3 / total, 0, 4 / 5 / total]
    np.testing.assert_allclose(wrong(graph, all_of_them)[0, 0], expected, rtol=1e-12)


def test_one_step_is_not_wrong_in_two_ways():
    graph = graph_of(call(0, "top_k_routing", LOGITS, per_token=2, normalize=False))
    weighed = variant("moe-sigmoid-vs-softmax", "sigmoid for softmax")(graph.calls[0], graph)
    with pytest.raises(Conflict):
        variant("moe-raw-logits-as-weights", "as they are")(weighed, graph)


def test_steps_are_not_taken_in_an_operation_that_has_none():
    """Another operation in the place of the routing would get inputs that it does not know."""
    graph = graph_of(call(0, "top_k_routing", LOGITS, per_token=2, normalize=True))
    other = graph.calls[0].replaced(lambda ops, logits, **options: logits)
    with pytest.raises(Conflict):
        variant("moe-sigmoid-vs-softmax", "sigmoid for softmax")(other, graph)


def test_what_is_normalised_already_is_no_bug():
    """By law: with norm_topk_prob, a softmax over the chosen logits alone is the same."""
    rewrite = variant("moe-renorm-spurious")
    graph = graph_of(call(0, "top_k_routing", LOGITS, per_token=2, normalize=True))
    assert rewrite(graph.calls[0], graph) is None


def test_rounded_probabilities_tie_and_the_first_wins():
    """0.4 and 0.4004 are the same in bfloat16."""
    logits = np.log([[[0.2, 0.4, 0.4004]]])
    case = ("moe-router-precision", "choice among bfloat16", "top_k_routing")
    found = one_call(*case, logits, per_token=1, normalize=True)
    np.testing.assert_array_equal(found, [[[0, 1, 0]]])


def test_logits_are_rounded_before_the_softmax():
    """1.001 is 1 in bfloat16, so that two experts are alike."""
    case = ("moe-router-precision", "logits in bfloat16", "top_k_routing")
    found = one_call(*case, np.array([[[1.0, 1.001]]]), per_token=2, normalize=True)
    np.testing.assert_array_equal(found, [[[0.5, 0.5]]])


def scaled(id, name):
    """The routing times a scale of each expert."""
    scales = np.array([10.0, 1.0, 2.0, 1.0])
    return one_call(
        id, name, "gain", np.array([[[0, 0, 0.4, 0.6]]]), scales, place="router.routing"
    )


def test_each_expert_has_a_scale_after_the_weights_were_normalised():
    missing = scaled("moe-per-expert-scale-missing", "")
    np.testing.assert_array_equal(missing, [[[0, 0, 0.4, 0.6]]])
    before = scaled("moe-per-expert-scale-missing", "before normalising")
    np.testing.assert_allclose(before, [[[0, 0, 0.8 / 1.4, 0.6 / 1.4]]], rtol=1e-12)


@pytest.mark.parametrize("case", [*CASES, ("moe-renorm-epsilon", "eps = 1e-06", True)], ids=str)
def test_no_more_experts_are_chosen_where_a_router_gives_no_numbers(case):
    id, name, normalize = case
    logits = np.full_like(LOGITS, np.nan)
    found = one_call(id, name, "top_k_routing", logits, per_token=2, normalize=normalize)
    assert np.count_nonzero(found) <= (3 if name == "one expert more" else 2)


def test_a_scale_before_normalising_chooses_no_more_experts_either():
    routing = np.array([[[0, 0, np.nan, np.nan]]])
    case = ("moe-per-expert-scale-missing", "before normalising", "gain")
    found = one_call(*case, routing, np.ones(4), place="router.routing")
    assert np.count_nonzero(found) == 2


def test_experts_in_the_order_of_text():
    """Of eleven experts number 10 comes third: expert 2 does what number 10 should."""
    identity, zero = np.eye(2), np.zeros((2, 2))
    routing = np.zeros((1, 1, 11))
    routing[..., 2] = 1.0
    graph = graph_of(
        call(0, "multiply", routing, np.ones_like(routing)),
        call(1, "experts", np.ones((1, 1, 2)), routing, *(stack(identity, zero),) * 3, per_token=1),
    )
    from dataclasses import replace

    from lockstep.parity.graph import Value

    experts = replace(graph.calls[1], inputs=(
        graph.calls[1].inputs[0], Value(0), *graph.calls[1].inputs[2:]
    ))  # fmt: skip
    graph = replace(graph, calls=(graph.calls[0], experts))
    found = wrong(graph, variant("moe-expert-order"))
    np.testing.assert_allclose(found, np.full((1, 1, 2), 1 / (1 + np.exp(-1.0))), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "one", "stands"),
    [
        ("from the last to the first", 2, 8),
        ("each the next one", 2, 3),
        ("each the one before", 2, 1),
    ],
)
def test_experts_stand_in_the_places_of_others(name, one, stands):
    """By hand: of eleven, the chosen one does what the one that stands in its place should."""
    from lockstep.parity.graph import Value

    routing = np.zeros((1, 1, 11))
    routing[..., one] = 1.0
    stacks = (Stack((11, 2, 2), lambda expert: np.eye(2) * (expert == stands)),) * 3
    graph = graph_of(
        call(0, "multiply", routing, np.ones_like(routing)),
        call(1, "experts", np.ones((1, 1, 2)), Value(0), *stacks, per_token=1),
    )
    found = wrong(graph, variant("moe-expert-order", name))
    np.testing.assert_allclose(found, np.full((1, 1, 2), 1 / (1 + np.exp(-1.0))), rtol=1e-12)


def stack(ten, others):
    """A stack of eleven matrices, of which the last alone is not zero."""
    return Stack((11, 2, 2), lambda expert: ten if expert == 10 else others)


def test_up_to_ten_experts_have_the_same_order_as_text():
    from lockstep.parity.graph import Value

    routing, stacks = np.ones((1, 1, 10)) / 10, (np.ones((10, 2, 2)),) * 3
    graph = graph_of(
        call(0, "multiply", routing, np.ones_like(routing)),
        call(1, "experts", np.ones((1, 1, 2)), Value(0), *stacks, per_token=10),
    )
    assert variant("moe-expert-order")(graph.calls[1], graph) is None


@pytest.mark.parametrize("convention", range(len(ROUTING)))
def test_a_step_that_is_right_leaves_every_bit_in_every_convention(convention):
    """Else a bug of no size would be told from the right weights by where they are rounded."""
    ops = namespace(SUMS | ROUTING[convention])
    logits = np.random.default_rng(5).normal(size=(1, 9, 6)).astype(np.float16)
    right = ops.top_k_routing(logits, per_token=2, normalize=True)
    again = Routing()(ops, logits, per_token=2, normalize=True)
    assert again.dtype == right.dtype
    np.testing.assert_array_equal(again, right)


@pytest.mark.parametrize("name", ["over tokens", "over all"])
def test_weights_that_are_normed_over_another_axis_by_loop(name):
    """Two tokens choose two of four experts each; the best of one is normed with that of the other,
    the second with the second.
    """
    logits = np.log([[[1.0, 2.0, 3.0, 4.0], [5.0, 1.0, 3.0, 1.0]]])
    found = one_call(
        "moe-renorm-wrong-axis", name, "top_k_routing", logits, per_token=2, normalize=True
    )
    best, second = (0.4, 0.5), (0.3, 0.3)
    sums = (sum(best), sum(second)) if name == "over tokens" else (1.5, 1.5)
    expected = [
        [0, 0, second[0] / sums[1], best[0] / sums[0]],
        [best[1] / sums[0], 0, second[1] / sums[1], 0],
    ]
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)


def test_weights_that_are_not_normed_have_no_wrong_axis():
    rewrite = variant("moe-renorm-wrong-axis", "over all")
    for normalize, steps in ((False, ()), (True, (1,))):
        graph = graph_of(
            call(0, "top_k_routing", LOGITS, per_token=2, normalize=normalize), steps=steps
        )
        assert rewrite(graph.calls[0], graph) is None
