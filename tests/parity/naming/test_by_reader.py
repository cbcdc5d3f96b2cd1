"""Streams of a port whose first layer is wrong are known by the norms that read them. By hand.

The port is the reference on noise in the place of what its layers should hand on; each norm of it
reads what its own layer before handed on, as the operation's definition says.
"""

from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.first_layer import first_layer
from lockstep.parity.naming.plan import aligned
from tests.parity.naming.kinds import MODELS, WITNESSES

TOKENS = np.array([[3, 14, 15, 9, 26, 5, 35, 8]])
BEFORE_MLP = {"gpt2": "ln_2", "gemma4": "pre_feedforward_layernorm"}


@pytest.fixture(scope="module", params=MODELS)
def port(request):
    """A kind of model, the model, and streams of noise: before all layers, in and behind each."""
    model, noise = reference.load(WITNESSES / MODELS[request.param]), np.random.default_rng(3)
    layers, width = model.config.num_hidden_layers, model.config.hidden_size
    streams = noise.normal(size=(2 * layers + 1, 1, TOKENS.shape[1], width)) + 0.3
    return request.param, model, streams.astype(np.float32)


def normed(kind: str, x: np.ndarray) -> np.ndarray:
    """Normalise with a gain of its own, and in GPT-2 a bias."""
    gain = np.linspace(0.5, 2, x.shape[-1], dtype=np.float32)
    if kind != "gpt2":
        return gain * x / np.sqrt(np.mean(x * x, -1, keepdims=True))
    return gain * (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) + gain**2


def path_of(kind: str) -> str:
    return "transformer.h" if kind == "gpt2" else "model.layers"


def norms(kind: str, streams: np.ndarray) -> dict[str, np.ndarray]:
    """Return the norms of a port by the names of their taps."""
    first = "ln_1" if kind == "gpt2" else "input_layernorm"
    second = BEFORE_MLP.get(kind, "post_attention_layernorm")
    found = {
        f"{path_of(kind)}.{n}.{part}": normed(kind, streams[2 * n + later])
        for n in range(len(streams) // 2)
        for later, part in enumerate((first, second))
    }
    return found | {
        "transformer.ln_f" if kind == "gpt2" else "model.norm": normed(kind, streams[-1])
    }


def recovered(port, values: dict[str, np.ndarray], said: dict[str, np.ndarray]) -> dict[str, str]:
    """Return the taps of `values` beside what a dump `said` by the names of taps."""
    _, model, _ = port
    taps: dict[str, np.ndarray] = {}
    model.forward(TOKENS, trace=taps.__setitem__)
    known, every = {tap: x.shape for tap, x in taps.items()}, values | said
    dump = Dump(Path("port"), {name: x.shape for name, x in every.items()}, every.__getitem__)
    names = aligned(dump, known, None, lambda: first_layer(model, TOKENS)).names
    return {name: tap for tap, name in names.items() if name in values and tap in known}


@pytest.mark.parametrize("which", ["behind", "entering", "residual"])
@pytest.mark.parametrize("name", ["layers.{}.resid", "hidden_states.{}"])
def test_streams_are_what_the_norms_read(port, which, name):
    kind, _, streams = port
    path, layers = path_of(kind), range(len(streams) // 2)
    start = "transformer.drop" if kind == "gpt2" else "model.embed_tokens"
    given, taps = {
        "behind": (streams[2::2], [f"{path}.{n}" for n in layers]),
        "entering": (streams[:-1:2], [start, *(f"{path}.{n}" for n in layers[:-1])]),
        "residual": (streams[1::2], [f"{path}.{n}.residual" for n in layers]),
    }[which]
    values = {name.format(n): x for n, x in enumerate(given)}
    wanted = {name.format(n): tap for n, tap in enumerate(taps)}
    assert recovered(port, values, norms(kind, streams)) == wanted
    assert recovered(port, values, {}) == {}  # nothing reads them


def test_what_no_norm_reads_is_left(port):
    """Another stream, one of a place that is not its own, or a name that is not of streams."""
    kind, _, streams = port
    behind, said = [*streams[2::2]], norms(kind, streams)
    others = np.random.default_rng(4).normal(size=streams.shape).astype(np.float32)
    for list_of in (others[2::2], behind[::-1], [*behind[:-1], others[0]]):
        values = {f"layers.{n}.resid": x for n, x in enumerate(list_of)}
        assert recovered(port, values, said) == {}
    assert recovered(port, {f"layers.{n}.thing": x for n, x in enumerate(behind)}, said) == {}


@pytest.mark.parametrize("part", ["", ".residual"])
@pytest.mark.parametrize("how", [
    lambda x: 2 * x, lambda x: x / np.sqrt(np.mean(x * x, -1, keepdims=True))
])  # fmt: skip
def test_beside_right_norms_what_is_a_stream_but_for_a_factor_is_left(port, how, part):
    """As Gemma 4's streams before `layer_scalar` are. The port is the reference itself."""
    kind, model, _ = port
    taps = {}
    model.forward(TOKENS, trace=taps.__setitem__)
    said = {tap: x for tap, x in taps.items() if "norm" in tap or ".ln_" in tap}
    layers = range(model.config.num_hidden_layers)
    values = {f"hidden_states.{n}": how(taps[f"{path_of(kind)}.{n}{part}"]) for n in layers}
    assert recovered(port, values, said) == {}


def test_few_tokens_tell_nothing(port):
    """A gain for each feature explains one row of anything."""
    kind, _, streams = port
    some = streams[:, :, :1]
    values = {f"layers.{n}.resid": x for n, x in enumerate(some[2::2])}
    assert recovered(port, values, norms(kind, some)) == {}
