"""Constants of any other value in torch ports. Witness: transformers, of a config that has them."""

from functools import partial
from typing import Any

import pytest

from lockstep import parity, reference
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.numbers import NUMBERS
from tests.proof import builds, ports
from tests.proof.registry import Bug
from tests.witnesses import build

SEED = 5
WRONG: list[tuple[str, str, Any, str, str]] = [
    ("llama", "rms_norm_eps", 0.002, "rms-eps-wrong", "eps = 0.002"),
    ("mistral", "sliding_window", 6, "mask-window-wrong", "a window of 6 keys"),
    ("qwen3", "rope_theta", 34567.0, "rope-theta-default", "base 34567"),
    ("llama_llama3", "factor", 5.0, "rope-stretch-wrong", "factor 5"),
    ("llama_yarn", "factor", 3.0, "rope-stretch-wrong", "factor 3, in cosines and sines too"),
    ("gpt2", "layer_norm_epsilon", 0.004, "rms-eps-wrong", "eps = 0.004"),
    ("gemma4_31b", "final_logit_softcapping", 2.2, "softcap-wrong", "cap 2.2"),
]
# All have too many others to look through first, where tests are many.
KNOWN = [one for one in catalogue() if one.id in NUMBERS or one.family == "mask"]


def put(config: Any, *, key: str, value: Any) -> None:
    stretch = getattr(config, "rope_parameters", None) or {}
    if key in stretch:
        stretch[key] = value
    else:
        setattr(config, key, value)


@pytest.mark.parametrize(("name", "key", "value", "id", "said"), WRONG)
def test_a_constant_of_the_port_is_found(tmp_path, name, key, value, id, said):
    build.settle()
    folder = builds.make(name, tmp_path / name, seed=SEED, dtype="float32")
    wrong = Bug("", "", "", "config", lambda subject: True, partial(put, key=key, value=value))
    tokens = builds.tokens(SEED, folder)
    taps = ports.dump(ports.load(folder, [wrong]), tokens)
    dump = Dump(folder, {tap: one.shape for tap, one in taps.items()}, taps.__getitem__)
    found = parity.explain(reference.load(folder), dump, tokens=tokens[0].tolist(), faults=KNOWN)
    assert [bug.id for bug in found.faults] == [id], found.unexplained
    assert said in (found.faults[0].variant or "")
    assert not found.unexplained
