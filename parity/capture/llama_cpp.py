"""Capture what llama.cpp's graph computes, by the evaluation callback of llama-cpp-python."""

# llama.cpp is an extra, which a machine that checks types need not have; without it the name means
# this file to the checker.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.parity.capture.captured import BATCH, Captured, Collection
from lockstep.parity.capture.ggml_tensor import Library, Tensor
from lockstep.parity.naming.llama_cpp import tap_of_llama_cpp
from lockstep.parity.naming.rotary_order import NEIGHBOURS
from lockstep.reference.checkpoint.errors import InputError

FAMILIES = {"gpt2": "gpt2", "gemma4": "gemma4"}
# These give other views of a tensor that was there before.
MOVES = ("RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")
PROBABILITIES, TURNED = "kq_soft_max", " (rope)"
# With three axes: tokens, heads (or layers), their width; probabilities: heads, tokens, keys.
THREE_AXES = (
    *("q_norm", "k_norm", "v_norm", "q_rope", "k_rope", "probs"),
    *("per_layer_projection_norm", "per_layer_inputs", "embed_tokens_per_layer"),
)
FEW_ROWS = (
    "{count} tensors such as {name} have rows for the last token alone, which is all that was asked"
    " for, and are left out; make the Llama with logits_all=True"
)
UNTRIMMED = "{name} weighs keys in an order that is not the prompt's, and is left out"
NO_VALUES = "{name} is of a type that no trace can hold"


@contextmanager
def capture(llama: Any) -> Iterator[Captured]:
    """Collect what llama.cpp computes for a `llama_cpp.Llama` while a block runs; yields the dump.

        with parity.capture.llama_cpp(llama) as dump:
            llama.eval(ids)

    Names are those of llama.cpp's graph, of all tensors that mean a tap. The block runs in a
    context of its own on the same weights, made with the same parameters and a callback, which
    llama.cpp takes only when a context is made. It begins with an empty cache, and so does what
    comes after.
    Raises: InputError if nothing ran, or what was kept can be no model's run.
    """
    noted = Noted(llama)
    try:
        noted.install()
        yield noted.kept.dump
    finally:
        noted.remove()
    noted.finish()


@dataclass
class Pass:
    """What one pass gave: its tokens, and each tensor in the parts in which it was computed."""

    prefix: str
    ids: list[int] = field(default_factory=list)
    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)


class Noted:
    """The context of one capture, and what its callback saw."""

    def __init__(self, llama: Any):
        import llama_cpp

        self.llama = llama
        architecture = llama.metadata.get("general.architecture", "llama")
        self.kept = Collection(Path(llama.model_path).name, "llama.cpp")
        self.kept.about["architecture"] = architecture
        self.family = FAMILIES.get(architecture, "llama")
        self.turns_neighbours = (
            llama_cpp.llama_model_rope_type(llama._model.model) == llama_cpp.LLAMA_ROPE_TYPE_NORM
        )
        self.library = Library(self.kept.dump.path)
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self.called)
        self.own = llama._ctx
        self.error: BaseException | None = None
        self.passes: list[Pass] = []
        self.next = 0  # the position that continues what is in the cache
        self.few: list[str] = []

    def install(self) -> None:
        from llama_cpp import _internals

        params = self.llama.context_params
        params = type(params).from_buffer_copy(params)
        params.cb_eval = self.callback
        self.context = _internals.LlamaContext(
            model=self.llama._model, params=params, verbose=self.llama.verbose
        )
        adapt(self.llama, self.context)
        self.decode, self.context.decode = self.context.decode, self.decoded
        self.llama.reset()
        self.llama._ctx = self.context

    def remove(self) -> None:
        self.llama._ctx = self.own
        self.llama.reset()
        if context := getattr(self, "context", None):
            context.close()

    def decoded(self, batch: Any) -> None:
        """Run a batch, as a pass of its own or as more of the prompt's."""
        raw = batch.batch
        count = raw.n_tokens
        ids, positions = raw.token[:count], raw.pos[:count]
        rows = {raw.seq_id[row][0] for row in range(count)}
        if len(rows) > 1:
            raise InputError(self.kept.dump.path, BATCH.format(rows=len(rows)), "one row at a time")
        self.begin(ids, positions[0])
        self.next = positions[-1] + 1
        self.decode(batch)
        if self.error is not None:
            raise self.error

    def begin(self, ids: list[int], position: int) -> None:
        """Begin a pass, unless these tokens are more of a prompt that comes in several batches."""
        goes_on = bool(self.passes) and position == self.next
        if goes_on and len(self.passes) == 1 and len(ids) > 1:
            self.passes[0].ids += ids
            return
        length = 1 if goes_on and len(ids) == 1 else None
        self.passes.append(Pass(self.kept.prefix(len(self.passes), length)))
        self.passes[-1].ids += ids

    def called(self, address: int, ask: bool, data: Any) -> bool:
        """Say whether a tensor is wanted, or keep it. An error must not pass through C."""
        start = time.perf_counter()
        wanted = not ask
        try:
            if self.error is None:
                tensor = self.library.tensor(address)
                name = self.name_of(tensor)
                wanted = wanted or name is not None
                if not ask and name is not None:
                    self.keep(name, tensor)
        except BaseException as error:
            self.error = error
        self.kept.dump.cost.seconds += time.perf_counter() - start
        return wanted

    def name_of(self, tensor: Tensor) -> str | None:
        """Return the name of a tensor that means a tap, None of any other.

        What has no name of its own is called by the weight or the bias that makes it.
        """
        name = tensor.name
        if tensor.op in MOVES:
            return None
        if tensor.op == "ROPE" and name.startswith(("Qcur-", "Kcur-")):
            name += TURNED
        if name.startswith("node_"):
            source = tensor.source(1 if tensor.op == "ADD" else 0)
            stem, _, kind = source.rpartition(".")
            if (tensor.op, kind) not in (("MUL_MAT", "weight"), ("ADD", "bias")):
                return None
            name = stem
        return name if tap_of_llama_cpp(name, self.family) else None

    def keep(self, name: str, tensor: Tensor) -> None:
        array = tensor.read()
        if array is None:
            self.kept.note(NO_VALUES.format(name=name))
            return
        tap = tap_of_llama_cpp(name, self.family) or ""
        axes = 3 if tap.endswith(THREE_AXES) else 2
        parts = self.passes[-1].parts
        if tensor.op == "ADD" and tensor.source(1).endswith(".bias"):
            self.without_bias(name, tensor, parts)
        parts.setdefault(name, []).append(array.reshape(array.shape[4 - axes :]))

    def without_bias(self, name: str, tensor: Tensor, parts: dict[str, list[np.ndarray]]) -> None:
        """Drop the product that a bias is now added to: its name is the tap's, its value not."""
        for other in {name, tensor.source(0), tensor.source(1).rpartition(".")[0]}:
            if parts.get(other):
                parts[other].pop()
                if not parts[other]:
                    del parts[other]

    def finish(self) -> None:
        """Join what came in parts, and put the dump together."""
        start = time.perf_counter()
        turned = [one for each in self.passes for name, one in each.parts.items() if TURNED in name]
        if self.turns_neighbours and turned:
            self.kept.about[NEIGHBOURS] = str(turned[0][0].shape[-1])
        for one in self.passes:
            for name, parts in one.parts.items():
                self.add(one, name, parts)
        if self.few:
            self.kept.note(FEW_ROWS.format(count=len(self.few), name=self.few[0]))
        self.kept.dump.cost.seconds += time.perf_counter() - start
        self.kept.fed([list(one.ids) for one in self.passes])
        self.kept.finish()

    def add(self, one: Pass, name: str, parts: list[np.ndarray]) -> None:
        axis = 1 if name.startswith(PROBABILITIES) else 0
        if axis and not (parts := trimmed(parts, one, self.passes)):
            self.kept.note(UNTRIMMED.format(name=one.prefix + name))
            return
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
        if whole.shape[axis] == len(one.ids):
            self.kept.add(one.prefix + name, whole)
        else:
            self.few.append(one.prefix + name)


def trimmed(parts: list[np.ndarray], one: Pass, passes: list[Pass]) -> list[np.ndarray]:
    """Cut probabilities to the keys that there are; the cache has room for more, at weight zero.

    Returns nothing if other keys have a weight: then the cache is in another order than the text.
    """
    begin = passes.index(one)
    keys = sum(len(other.ids) for other in passes[: begin + 1]) if one.prefix else len(one.ids)
    if one.prefix.startswith("pass."):
        keys = len(one.ids)
    if any(part[..., keys:].any() for part in parts):
        return []
    width = [(0, 0), (0, 0)]
    cut = [part[..., :keys] for part in parts]
    return [np.pad(part, [*width, (0, keys - part.shape[-1])]) for part in cut]


def adapt(llama: Any, context: Any) -> None:
    """Give a context the adapter that a Llama was made with."""
    adapter = getattr(llama, "_lora_adapter", None)
    if adapter is None:
        return
    import ctypes

    import llama_cpp

    adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter)
    scales = (ctypes.c_float * 1)(llama.lora_scale)
    if llama_cpp.llama_set_adapters_lora(context.ctx, adapters, 1, scales):
        raise InputError(llama.lora_path, "llama.cpp cannot use this adapter in a second context")
