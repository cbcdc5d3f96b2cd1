"""A model that was left in training mode. Witness: GPT-2 of transformers, and torch's dropout."""

import torch

from lockstep import parity, reference
from lockstep.parity.dumps.dump import Dump
from tests.proof import builds, ports
from tests.proof.registry import Bug
from tests.witnesses import build

SEED, RATE = 5, 0.1


def in_training(port):
    torch.manual_seed(SEED)
    for module in port.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = RATE
    port.model.train()


def test_a_port_in_training_mode_is_told_so(tmp_path):
    """Its attention drops weights too, of which nothing shows which; the rest is by two numbers."""
    build.settle()
    folder = builds.make("gpt2", tmp_path / "gpt2", seed=SEED, dtype="float32")
    tokens = builds.tokens(SEED, folder)
    left_on = Bug("", "", "", "modules", lambda subject: True, in_training)
    taps = ports.dump(ports.load(folder, [left_on]), tokens)
    dump = Dump(folder, {tap: one.shape for tap, one in taps.items()}, taps.__getitem__)
    found = parity.explain(reference.load(folder), dump, tokens=tokens[0].tolist(), faults=())
    shapes = {one.tap: one.shape for one in found.unexplained}
    dropped = [tap for tap, shape in shapes.items() if shape.endswith("p = 0.1 in training mode")]
    assert {"transformer.drop", "transformer.h.0", "transformer.h.3"} <= {*dropped}, shapes
