"""What a piece takes to compute, and how often it is."""

from math import prod

import numpy as np
import pytest

from lockstep.parity.explaining.searching import price as price_module
from lockstep.parity.explaining.searching.price import (
    BUDGET,
    FEWEST,
    WORK,
    most_computations,
    price,
)
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Graph, record
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.ports import graph_of, model_of, prompt

DENSE = "models/untied_float32"


def layer_of(name: str, graph: Graph) -> tuple[Trial, Piece]:
    """Return the second layer, computed from what the first made."""
    model = model_of(name)
    ends = [graph.taps[f"model.layers.{layer}"] for layer in (0, 1)]
    values = {number: np.zeros(graph.shapes[number], np.float32) for number in ends}
    trial = Trial(graph, model.ops, np.dtype(np.float32), values, Tensors(model.checkpoint))
    return trial, graph.piece(graph.taps["model.layers.1"], values)


def test_a_token_takes_each_number_of_a_matrix_once():
    """By hand: all matrices of a layer, for each of the tokens."""
    model, graph = model_of(DENSE), graph_of(DENSE)
    names = [
        name for name in model.checkpoint.names if "layers.1." in name and "_proj.weight" in name
    ]
    matrices = sum(prod(model.checkpoint.stored(name).shape) for name in names)
    assert len(names) == 7
    gains = price(*layer_of(DENSE, graph)) / 20 - matrices
    assert 0 <= gains < 0.5 * matrices  # norms count as matrices as wide as they


def test_more_tokens_take_as_much_more():
    model = model_of(DENSE)
    longer = record(model, prompt(model, 40))
    ratio = price(*layer_of(DENSE, longer)) / price(*layer_of(DENSE, graph_of(DENSE)))
    assert ratio == pytest.approx(2)


def test_a_small_piece_is_computed_as_often_as_any_and_a_large_one_less(monkeypatch):
    trial, piece = layer_of(DENSE, graph_of(DENSE))
    assert most_computations(trial, piece) == BUDGET < WORK / price(trial, piece)
    monkeypatch.setattr(price_module, "WORK", 100 * price(trial, piece))
    assert most_computations(trial, piece) == 100
    monkeypatch.setattr(price_module, "WORK", 1.0)
    assert most_computations(trial, piece) == FEWEST
