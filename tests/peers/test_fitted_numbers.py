"""Constants of any other value in torch ports. Witness: transformers, of a config that has them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockstep import parity, reference
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.faults import Fault, catalogue
from lockstep.parity.faults.numbers import NUMBERS
from tests.proof import builds, ports
from tests.proof.registry import Bug, named
from tests.witnesses import build

SEED = 5
WRONG: list[tuple[str, str, Any, str, str]] = [
    ("llama", "rms_norm_eps", 0.002, "rms-eps-wrong", "eps = 0.002"),
    ("mistral", "sliding_window", 6, "mask-window-wrong", "a window of 6 keys"),
    ("qwen3", "rope_theta", 34567.0, "rope-theta-default", "base 34567"),
    ("qwen3", "stretch", 2.0, "rope-stretch-wrong", "positions divided by 2"),
    ("llama_llama3", "factor", 5.0, "rope-stretch-wrong", "factor 5"),
    ("llama_yarn", "factor", 3.0, "rope-stretch-wrong", "factor 3, in cosines and sines too"),
    ("gpt2", "layer_norm_epsilon", 0.004, "rms-eps-wrong", "eps = 0.004"),
    ("gemma4_31b", "final_logit_softcapping", 2.2, "softcap-wrong", "cap 2.2"),
]
BESIDE: list[tuple[str, str, str, Any, list[tuple[str, str | None]]]] = [
    ("llama", "rope-sign-flipped (every layer)", "rope_theta", 50000.0,
     [("rope-sign-flipped", None), ("rope-theta-default", "base 50000 for 500000")]),
    ("qwen3", "norm-plus-one-twice (every norm)", "rms_norm_eps", 0.002,
     [("norm-plus-one-twice", None), ("rms-eps-wrong", "eps = 0.002 for 1e-06")]),
    ("mistral", "mask-swa-off-by-one (one less)", "scaling", 0.2,
     [("attn-scale-wrong", "scores times 0.2 for 0.3162278"),
      ("mask-swa-off-by-one", "one key less")]),
    ("qwen3_moe", "moe-renorm-missing", "num_experts_per_tok", 4,
     [("moe-renorm-missing", None), ("moe-top-k-wrong", "one expert more")]),
]  # fmt: skip
# All have too many others to look through first, where tests are many.
KNOWN = [one for one in catalogue() if one.id in NUMBERS or one.family == "mask"]
MORE = [one for one in catalogue() if one in KNOWN or one.family in ("norm", "rope", "moe")]


def put(config: Any, *, key: str, value: Any) -> None:
    stretch = getattr(config, "rope_parameters", None) or {}
    if key in stretch:
        stretch[key] = value
    else:
        setattr(config, key, value)


def rescaled(port: Any, *, scale: float) -> None:
    for attention in port.attentions():
        attention.scaling = scale


def stretched(port: Any, *, by: float) -> None:
    """Divide the positions of a model that does not stretch them, as `rope_freq_scale` does."""
    for kind, frequencies in [*port.frequencies()]:
        port.set_frequencies(kind, frequencies / by)


def constant(key: str, value: Any) -> Bug:
    if key == "stretch":
        return Bug("", "", "", "modules", lambda subject: True, partial(stretched, by=value))
    if key == "scaling":  # no key of a config
        return Bug("", "", "", "modules", lambda subject: True, partial(rescaled, scale=value))
    return Bug("", "", "", "config", lambda subject: True, partial(put, key=key, value=value))


def explained(folder: Path, wrong: list[Bug], faults: list[Fault]) -> Any:
    tokens = builds.tokens(SEED, folder)
    taps = ports.dump(ports.load(folder, wrong), tokens)
    dump = Dump(folder, {tap: one.shape for tap, one in taps.items()}, taps.__getitem__)
    return parity.explain(reference.load(folder), dump, tokens=tokens[0].tolist(), faults=faults)


@pytest.mark.parametrize(("name", "key", "value", "id", "said"), WRONG)
def test_a_constant_of_the_port_is_found(tmp_path, name, key, value, id, said):
    build.settle()
    folder = builds.make(name, tmp_path / name, seed=SEED, dtype="float32")
    found = explained(folder, [constant(key, value)], KNOWN)
    assert [bug.id for bug in found.faults] == [id], found.unexplained
    assert said in (found.faults[0].variant or "")
    assert not found.unexplained


@pytest.mark.parametrize(("name", "bug", "key", "value", "said"), BESIDE)
def test_a_constant_is_found_beside_a_bug_of_its_operation(tmp_path, name, bug, key, value, said):
    build.settle()
    folder = builds.make(name, tmp_path / name, seed=SEED, dtype="float32")
    found = explained(folder, [constant(key, value), named(bug)], MORE)
    assert sorted((one.id, one.variant) for one in found.faults) == said, found.unexplained
    assert not found.unexplained
