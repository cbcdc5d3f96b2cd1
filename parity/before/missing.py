"""Tensors that the port's file has not, and those that only it has."""

import re
from collections.abc import Collection, Iterator

import numpy as np

from lockstep.parity.before.elsewhere import same_values
from lockstep.parity.before.own_tensors import OwnTensors
from lockstep.parity.before.pairs import Verdict
from lockstep.parity.before.port_tensors import PortTensors, Unfit
from lockstep.parity.naming.names import unwrapped
from lockstep.reference.checkpoint.architectures import architecture_of
from lockstep.reference.checkpoint.config_fields import Fields

HEAD = "lm_head.weight"
EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight")


def absent(
    own: OwnTensors, missing: list[str], names: Collection[str]
) -> Iterator[tuple[str, Verdict]]:
    """Yield a verdict for each tensor of ours that the file has under no name."""
    for name in missing:
        if name == HEAD:
            text = "the head has values of its own, and the file has none for it"
            yield name, Verdict("missing", "tied-head-mishandled", text, "load it; do not tie it")
            continue
        if name.endswith(".bias"):
            yield name, Verdict("missing", bias_fault(name), "the file has no such bias", "add it")
            continue
        text = "the file has no such tensor, so the port keeps what it began with, or lacks it"
        yield name, Verdict("missing", "strict-false-drops-tensors", text, "load it")


def bias_fault(name: str) -> str:
    """Return the class of a bias that was left out."""
    if re.search(r"\.([qkv]_proj|c_attn)\.bias$", name):
        return "qkv-bias-dropped"
    if re.search(r"\.ln_[12f]\.bias$", name):
        return "layernorm-bias-dropped"
    return "o-proj-mlp-bias-dropped"


def beyond(own: OwnTensors, port: PortTensors, rest: list[str]) -> Iterator[tuple[str, Verdict]]:
    """Yield a verdict for each tensor of theirs that is none of ours; buffers say nothing."""
    checkpoint = own.checkpoint
    architecture = architecture_of(Fields({"model_type": checkpoint.architecture}, port.path))
    for theirs in rest:
        if unwrapped(theirs) == HEAD and checkpoint.config.tie_word_embeddings:
            yield theirs, head_beside(own, port, theirs)
        elif architecture.tolerated(unwrapped(theirs), checkpoint.config) is None:
            text = "the checkpoint has no such tensor, or nothing says which one it is"
            yield theirs, Verdict("extra", None, text, "see whether the model has it")


def head_beside(own: OwnTensors, port: PortTensors, theirs: str) -> Verdict:
    """Judge a head of its own where ours is the embedding."""
    table = next(name for name in EMBEDDINGS if name in own.shapes)
    try:
        stored = port.read(theirs, own.shapes[table])
    except Unfit as unfit:
        return Verdict("unreadable", None, unfit.what, "use the embedding as the head")
    if isinstance(stored, np.ndarray) and same_values(stored, own.read(table)):
        text = "the head is kept beside the embedding, with the same values"
        return Verdict("tied head", None, text, "nothing", harmless=True)
    text = "the head has other values than the embedding, which it should be"
    return Verdict("head", "tied-head-mishandled", text, "use the embedding as the head")
