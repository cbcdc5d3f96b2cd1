"""Where Python looks for no garbage. By law."""

import gc
from argparse import Namespace

from lockstep.fast import model
from lockstep.parity.cli.loading import load

OPTIONS = Namespace(model="parity/demo/checkpoint", ignore_config=())


def test_it_rests_while_a_model_loads(monkeypatch):
    seen = []

    class Watched(model.Model):
        def __init__(self, *given, **told):
            seen.append(gc.isenabled())
            super().__init__(*given, **told)

    monkeypatch.setattr(model, "Model", Watched)
    load(OPTIONS, "cpu", "float32")
    assert seen == [False] and gc.isenabled()
