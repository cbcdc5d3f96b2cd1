"""Mixtures of experts in half precision, where rounding may choose another expert: a right port is
then right with the experts that it took, and a wrong one is wrong with any.

By law: other kernels of transformers for attention and for experts are right ports of its own
modules. By hand: bugs are planted in one module of a torch model each.
"""

import re
from typing import Any, cast

import numpy as np
import pytest
import torch

from lockstep import parity
from lockstep.parity.torch_modules.choices import Choice, Choices, as_made, reach
from lockstep.parity.torch_modules.replays import Run
from lockstep.parity.torch_modules.rewriting import mode_class
from lockstep.parity.torch_modules.steering import Piece
from lockstep.parity.torch_modules.steering import settled as search
from lockstep.parity.torch_modules.turns import Turns, said
from tests.peers.new_architectures import bugs
from tests.peers.new_architectures.builds import loaded, make
from tests.peers.new_architectures.runs import only, wrong
from tests.witnesses import build

SIZES: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 8},
    "Olmoe": {"num_experts": 8},
    "Qwen3Moe": {},
}
PORTS = [*((name, "bfloat16") for name in SIZES), ("Mixtral", "float16")]
LAYER = re.compile(r"model\.layers\.[0-9]+")
BUGS = [
    bugs.with_equal_weights,
    bugs.with_swapped_experts,
    bugs.without_the_best_expert,
    bugs.with_one_expert_less,
    bugs.with_larger_scores,
]
ROUTER_BUGS = [bugs.with_louder_router, bugs.with_a_biased_router]


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    build.settle()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home, made = tmp_path_factory.mktemp("models"), {}

    def folder(name: str, seed: int) -> Any:
        if (name, seed) not in made:
            made[name, seed] = make(name, home / f"{name}-{seed}", seed, **SIZES[name])
        return made[name, seed]

    return folder


def captured(model: Any, seed: int) -> Any:
    ids = torch.randint(0, 96, (1, 40), generator=torch.Generator().manual_seed(seed))
    with parity.capture.torch(model) as dump, torch.no_grad():
        model(ids)
    return dump


def of_layers(name: str) -> bool:
    return bool(LAYER.fullmatch(name)) or name in ("model.embed_tokens", "model.norm", "logits")


def of_logits(name: str) -> bool:
    return name == "logits"


def without_routers(name: str) -> bool:
    return not name.endswith(".gate")


def judged(dump: Any, keep: Any, folder: Any) -> Any:
    kept = only(dump, keep)
    return parity.diff(kept, kept, model=folder)


def turned(result: Any) -> int:
    told = [line for line in result.conventions if "within rounding of a tie" in line]
    return int(told[0].split()[1]) if told else 0


@pytest.mark.parametrize("keep", [of_layers, of_logits])
@pytest.mark.parametrize("name", SIZES)
def test_right_ports_in_half_precision_raise_no_alarm(name, keep, folders):
    """By law. Some of the ports do take other experts, or nothing would be shown."""
    count = 0
    for seed, dtype in ((0, "bfloat16"), (1, "bfloat16"), (2, "bfloat16"), (3, "float16")):
        kernels = {"attention": ("eager", "sdpa")[seed % 2], "experts_implementation": "grouped_mm"}
        dump = captured(loaded(folders(name, seed), dtype, **kernels), 1000 + seed)
        result = judged(dump, keep, folders(name, seed))
        assert wrong(result) == []
        assert result.compared == (6 if keep is of_layers else 1)
        count += turned(result)
    assert count > 0


@pytest.mark.parametrize("bug", [*BUGS, *ROUTER_BUGS], ids=lambda bug: bug.__name__)
@pytest.mark.parametrize(("name", "dtype"), PORTS)
def test_a_bug_is_that_of_its_layer_all_the_same(name, bug, dtype, folders):
    """By hand: in dumps without the router, of layers, and of all modules but it."""
    model = loaded(folders(name, 5), dtype)
    bug(model)
    dump = captured(model, 77)
    assert wrong(judged(dump, of_layers, folders(name, 5))) == ["model.layers.1"]
    (tap,) = wrong(judged(dump, without_routers, folders(name, 5)))
    here = "self_attn.o_proj" if bug is bugs.with_larger_scores else "mlp.experts"
    assert tap == f"model.layers.1.{here}"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
@pytest.mark.parametrize(("name", "dtype"), PORTS)
def test_a_bug_shows_in_the_logits_alone(name, bug, dtype, folders):
    """By hand: no choices that rounding allows explain it."""
    model = loaded(folders(name, 5), dtype)
    bug(model)
    assert wrong(judged(captured(model, 77), of_logits, folders(name, 5))) == ["logits"]


def test_the_report_says_how_many_choices_are_the_port_s(folders):
    """By hand: one token's second expert is made the third, whose score is as good as equal."""
    path = folders("Mixtral", 7)
    model = loaded(path, "bfloat16")
    bugs.with_a_near_expert(model, range(40))
    dump = captured(model, 8)
    result = judged(dump, without_routers, path)
    assert wrong(result) == []
    told = "right: {} of experts within rounding of a tie: taken as the port made them"
    assert told.format("1 choice") in result.conventions
    router = parity.diff(dump, dump, model=path)  # its own logits do not say so, and are no tie
    assert wrong(router) == ["model.layers.1.mlp.experts"]


def test_choices_are_seen_made_and_counted_again():
    """By hand."""
    scores = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 0.0]])
    choices = Choices({(1, 0): np.array([0, 2])})
    with mode_class()(choices):
        torch.topk(scores, 2)
        with choices.again() as rewind:
            torch.topk(scores, 2)
        rewind()
        torch.topk(-scores, 1)
        values, index = torch.topk(scores, 2)
        torch.topk(scores, 3)  # all of them: no choice
    assert choices.made[0].picked.tolist() == [[0], [2]]
    assert index.tolist() == [[0, 2], [0, 1]] and values.tolist() == [[1.0, 2.0], [5.0, 4.0]]
    assert choices.count == 2 and choices.made.keys() == {0, 1}
    assert choices.made[1].chosen().tolist() == [[True, False, True], [True, True, False]]
    again = as_made(choices.made)
    assert again[1, 1].tolist() == [0, 1] and len(again) == 4


def test_how_near_two_scores_must_be():
    """By hand: twelve times what a way shows, or a rounding of how far apart the scores are."""
    scores = np.array([[1.0, 0.5, -np.inf], [1.0, 0.5, 0.25]])
    centre = Choice(scores, np.array([[0], [0]]))
    way = Choice(scores + np.array([[0.01], [0.0]]), centre.picked)
    assert np.allclose(reach(centre, [way], "bfloat16"), [0.12, 0.75 * 2**-7])
    assert np.allclose(reach(centre, [], "float16"), [2**-11, 0.75 * 2**-10])
    assert np.allclose(reach(centre, [way], "bfloat16", told=True), [0.12, 0])
    shifted = Choice(scores + 8, centre.picked)  # as a router's biases may do to all of them
    assert np.array_equal(reach(shifted, [], "bfloat16"), reach(centre, [], "bfloat16"))


class Tokens(Piece):
    """Tokens that may each take choices 1, 2, ... beside their own, 0; a run is what was taken."""

    def __init__(self, count: int, queue: int, law: Any):
        super().__init__("logits", np.empty(0), count, {}, np.ones(count))
        self.queue, self.law = queue, law

    def errors(self, run: Any) -> np.ndarray:
        taken = [int(run.get((0, token), [0])[0]) for token in range(self.tokens)]
        return np.array(self.law(taken), float)

    def turns(self, token: int, run: Any) -> Any:
        return [{(0, token): np.array([one])} for one in range(1, self.queue + 1)]


def found(piece: Tokens) -> tuple[dict[int, int], int]:
    """Return what a search takes for each token, and after how many runs."""
    runs: list[Any] = []

    def run(turned: Any) -> Any:
        runs.append(turned)
        return dict(turned)

    made = search([piece], cast(Run, {}), run)
    return {token: int(columns[0]) for (_, token), columns in made.items()}, len(runs)


def test_the_first_token_tries_its_whole_queue_beside_others():
    """By hand: token 0 took its third, all others their first, which is right only beside that;
    beside another choice of token 0 they seem right with what they did not take."""

    def law(taken: list[int]) -> list[float]:
        right = 1 if taken[0] == 3 else 2
        return [9.0 * (taken[0] != 3), *(9.0 * (one != right) for one in taken[1:])]

    assert found(Tokens(12, 4, law)) == ({0: 3} | dict.fromkeys(range(1, 12), 1), 6)


def test_a_token_that_is_given_up_turned_nothing():
    """By hand: token 1 gets better with its second choice, and is right with none."""

    def law(taken: list[int]) -> list[float]:
        return [0.0, 5.0 if taken[1] == 2 else 9.0, 9.0 * (taken[2] != 1)]

    assert found(Tokens(3, 2, law))[0] == {2: 1}


def test_what_is_said_of_turned_choices():
    """By hand: rows of a batch add up; too many are refused; a search cut short says so."""
    tie = "choices of experts within rounding of a tie: taken as the port made them"
    assert said([Turns()]) == [] and said([Turns(2)]) == [f"2 {tie}"]
    assert said([Turns(1), Turns(), Turns(4, ways=1)]) == [f"5 {tie}, in rows 0, 2"]
    refused = (
        "12 choices of experts would have to be turned, but 7 at most are rounding: none taken"
    )
    assert said([Turns(12, ways=2)]) == [refused]
    cut = "the search for choices within rounding of a tie ended after 100 runs"
    assert said([Turns(0, 0, 100)]) == [cut]


def test_a_router_that_forgets_its_correction_is_no_rounding(tmp_path):
    """By hand: the bias of the choice, hardly larger than rounding, is left out. The right port
    has it, and turns a few choices itself."""
    sizes = {"n_routed_experts": 32, "num_experts_per_tok": 4}
    folder = make("DeepseekV3", tmp_path / "plain", **sizes)
    model = loaded(folder, "float32")
    generator = torch.Generator().manual_seed(0)
    biases = [one for name, one in model.named_buffers() if "correction" in name]
    for bias in biases:
        bias.copy_(8 + 0.01 * torch.randn(bias.shape, generator=generator))
    model.save_pretrained(folder)
    for forgets, verdict in ((False, "parity"), (True, "diverged")):
        port = loaded(folder, "bfloat16")
        if forgets:
            for name, bias in port.named_buffers():
                bias.fill_(8.0) if "correction" in name else None
        dump = captured(port, 3)
        assert judged(dump, of_layers, folder).verdict == verdict
        everything = parity.diff(dump, dump, model=folder)  # the logits are told: no reach at all
        assert everything.verdict == verdict and turned(everything) == 0
    assert len(biases) == 2
