"""A tensor that is misread in one layer, in a piece of many: the logits alone are dumped."""

import pytest

from lockstep.parity.explaining.searching import untrained
from lockstep.parity.explaining.searching.budget import Budget
from lockstep.parity.explaining.searching.hypothesis import FEW, hypotheses, in_one_module
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import explained, graph_of, port
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

NAME, LENGTH = "llama/biased_llama3", 12


@long
@pytest.mark.parametrize(
    ("bug", "module"),
    [("gguf-dims-reversed", "q_proj"), ("strict-false-drops-tensors[matrices of 0]", "o_proj")],
)
def test_it_is_named_with_its_layer(bug, module):
    """By witness: the port is made in another order of sums than the reference."""

    def there(call):
        return call.layer == 1 and call.place.endswith(module)

    taps = port(NAME, [bug], level="logits", where=there, length=LENGTH)
    found = explained(NAME, taps, length=LENGTH)
    (fault,) = found.faults
    assert (fault.id, fault.layers) == (bug.partition("[")[0], [1])
    assert fault.also_fits == [] and found.unexplained == []


@long
@pytest.mark.parametrize(("most", "named"), [(8000, True), (-1, False)])
def test_the_search_has_a_limit_of_its_own(monkeypatch, most, named):
    """By hand: a model of usual depth has as many bugs to look at as the budget allows."""
    every = Search.explanations

    def explanations(self, *words, **options):
        self.budget, self.work = Budget(self.trial, len(self.atoms) - 1), most
        return every(self, *words, **options | {"deep": False})

    monkeypatch.setattr(Search, "explanations", explanations)
    monkeypatch.setattr(untrained, "shown", lambda *words: None)  # it takes long
    taps = port(NAME, ["gguf-dims-reversed"], level="logits", where=in_q_proj, length=LENGTH)
    known = [one for one in catalogue() if one.id == "gguf-dims-reversed"]
    found = explained(NAME, taps, known, length=LENGTH)
    assert [one.layers for one in found.faults] == [[1]] * named


def in_q_proj(call):
    return call.layer == 1 and call.place.endswith("q_proj")


def test_each_module_of_each_layer_is_thought_of_once_where_there_are_many():
    graph = graph_of(NAME, LENGTH)
    one, _ = hypotheses([fault for fault in catalogue() if fault.id == "gguf-dims-reversed"], graph)
    every = range(len(graph.calls))
    found = [*in_one_module(one, every, graph)]
    calls = [graph.calls[number] for number in one.calls]
    modules = [{(graph.calls[n].place, graph.calls[n].layer) for n in atom.calls} for atom in found]
    single = [one for one in modules if len(one) == 1]
    assert len(calls) > FEW and len(single) == len({(call.place, call.layer) for call in calls})
    assert all(len({layer for _, layer in one}) == 1 for one in modules)  # nothing of two layers
    assert frozenset().union(*(atom.calls for atom in found)) == one.calls
    few = sorted(one.calls)[:FEW]
    assert [*in_one_module(one, few, graph)] == []  # each call of few is thought of anyway


def test_the_modules_of_one_layer_that_play_one_part_are_thought_of_together():
    """As a port's author does who calls the norms before attention and the MLP twice."""
    graph = graph_of("gemma4/effective", LENGTH)
    one = hypotheses([fault for fault in catalogue() if fault.id == "norm-applied-twice"], graph)[0]
    found = [*in_one_module(one, range(len(graph.calls)), graph)]
    for layer in range(graph.config.num_hidden_layers):
        norms = [
            number for place in ("input_layernorm", "pre_feedforward_layernorm")
            for number in (call.number for call in graph.at(place, layer))
        ]  # fmt: skip
        assert len(norms) == 2 and [atom.calls for atom in found].count(frozenset(norms)) == 1
