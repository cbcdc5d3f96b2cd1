"""What is dumped under the name of what it was made from is read as what it is. By law."""

import pytest

from lockstep.parity.faults.rewrites import instead
from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

LLAMA, QWEN3, GPT2 = "llama/mistral_window", "models/untied_float32", "gpt2/original"
# Taps of a layer, and what is made of them.
LATE = {
    "self_attn.q_proj": "self_attn.q_rope",
    "self_attn.k_norm": "self_attn.k_rope",
    "self_attn.o_proj": "residual",
    "mlp.gate_proj": "mlp.act_fn",
    "mlp.down_proj": "",
    "attn.c_proj": "residual",
    "mlp.c_proj": "",
    "mlp.c_fc": "mlp.act",
}


def late(taps, *names, keep=False):
    """Return a dump that holds what is made of some under their names, alone or as well."""
    every = dict(taps)
    for tap in taps:
        for name in names:
            whole = tap.removesuffix(f".{name}")
            after = ".".join(filter(None, (whole, LATE[name])))
            if whole != tap and after in every:
                every[tap] = every[after] if keep else every.pop(after)
    return every


def told(found):
    return [line for line in found.conventions if "what was made of it" in line]


@sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    ("name", "some"),
    [(LLAMA, ["self_attn.o_proj"]), (LLAMA, ["self_attn.q_proj"]), (LLAMA, ["mlp.gate_proj"]),
     (QWEN3, ["self_attn.k_norm", "self_attn.q_proj"]), (GPT2, ["attn.c_proj", "mlp.c_proj"]),
     (GPT2, ["mlp.c_fc"]), ("gemma4/sparse", ["mlp.gate_proj"])]
)  # fmt: skip
def test_a_right_port_that_dumps_late_is_right(name, some, keep, dtype):
    taps = late(port(name, level="taps", dtype=dtype), *some, keep=keep)
    found = explained(name, taps, dtype=dtype)
    assert found.verdict == "clean" and len(told(found)) == len(some)


@sampled(1)
@pytest.mark.parametrize(
    "bug", ["rope-sign-flipped", "residual-counted-twice", "final-norm-missing"]
)
def test_its_bugs_are_named_all_the_same(bug):
    where = {"residual-counted-twice": lambda call: call.place == ""}.get(bug, lambda call: True)
    taps = late(port(LLAMA, [bug], level="taps", where=where), "mlp.gate_proj", "self_attn.o_proj")
    assert ids(explained(LLAMA, taps)) == {bug}


def turned_again(ops, *inputs, **options):
    once = ops.rope(*inputs, **options)
    return ops.rope(once, *inputs[1:], **options)


def test_a_turn_that_is_done_twice_is_no_convention():
    """The queries that were dumped have turned already, and turn again."""
    once = port(LLAMA, level="taps")
    taps = port(LLAMA, [instead("rope", turned_again, "self_attn.q_rope")], level="taps")
    for tap in [tap for tap in taps if tap.endswith("q_proj")]:
        taps[tap] = once[tap.replace("q_proj", "q_rope")].swapaxes(1, 2).reshape(taps[tap].shape)
    found = explained(LLAMA, taps, ())
    assert found.verdict != "clean" and not told(found)


def test_a_sum_that_is_taken_for_a_branch_is_no_convention():
    """The module adds the stream, and so does the layer."""
    taps = port(LLAMA, ["residual-counted-twice"], level="taps", where=is_first_sum)
    for tap in [tap for tap in taps if tap.endswith("o_proj")]:
        before = taps["model.embed_tokens" if ".0." in tap else "model.layers.0"]
        taps[tap] = taps[tap] + before
    found = explained(LLAMA, taps)
    assert found.verdict != "clean" and not told(found)


def is_first_sum(call):
    return call.place == "residual"
