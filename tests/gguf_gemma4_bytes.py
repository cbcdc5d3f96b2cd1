"""A small Gemma 4 of zeros as a GGUF file, byte by byte, to be changed in one place."""

from typing import Any

import numpy as np

from tests import gguf_bytes as g

# Four layers, of which the last two have no keys; full layers have wider heads and fewer groups.
KEYS: dict[str, Any] = {
    "block_count": (g.U32, 4),
    "context_length": (g.U32, 128),
    "embedding_length": (g.U32, 32),
    "feed_forward_length": (g.U32, [64, 64, 128, 128]),
    "attention.head_count": (g.U32, 4),
    "attention.head_count_kv": (g.U32, [2, 1, 2, 1]),
    "attention.key_length": (g.U32, 16),
    "attention.value_length": (g.U32, 16),
    "attention.key_length_swa": (g.U32, 8),
    "attention.value_length_swa": (g.U32, 8),
    "attention.layer_norm_rms_epsilon": (g.F32, 1e-6),
    "attention.sliding_window": (g.U32, 9),
    "attention.sliding_window_pattern": (g.BOOL, [1, 0, 1, 0]),
    "attention.shared_kv_layers": (g.U32, 2),
    "embedding_length_per_layer_input": (g.U32, 32),
    "rope.freq_base": (g.F32, 1e6),
    "rope.freq_base_swa": (g.F32, 1e4),
    "rope.dimension_count": (g.U32, 16),
    "rope.dimension_count_swa": (g.U32, 8),
    "final_logit_softcapping": (g.F32, 30.0),
}
DIVISORS = [1.0, 1.0, *[1e30] * 6]
NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
EXPERTS = {
    "ffn_gate_inp.weight": (6, 32),
    "ffn_gate_inp.scale": (32,),
    "ffn_down_exps.scale": (6,),
    "ffn_gate_up_exps.weight": (6, 64, 32),
    "ffn_down_exps.weight": (6, 32, 32),
    **{f"{name}.weight": (32,) for name in ("pre_ffw_norm_2", "post_ffw_norm_1")},
    "post_ffw_norm_2.weight": (32,),
}
EXPERT_KEYS = {
    "expert_count": (g.U32, 6),
    "expert_used_count": (g.U32, 2),
    "expert_feed_forward_length": (g.U32, 32),
}


def layer(number: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one layer; the first two have keys."""
    width, groups = ((8, 2), (16, 1))[number % 2]
    inner = 64 if number < 2 else 128
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (32,) for name in NORMS}
    shapes |= {"attn_q.weight": (4 * width, 32), "attn_output.weight": (32, 4 * width)}
    shapes |= {"attn_q_norm.weight": (width,), "layer_output_scale.weight": (1,)}
    shapes |= {"ffn_gate.weight": (inner, 32), "ffn_up.weight": (inner, 32)}
    shapes |= {"ffn_down.weight": (32, inner), "inp_gate.weight": (32, 32), "proj.weight": (32, 32)}
    if number < 2:
        shapes |= {f"attn_{one}.weight": (groups * width, 32) for one in "kv"}
        shapes["attn_k_norm.weight"] = (width,)
    return shapes


def model(
    keys: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
    extra: tuple[bytes, ...] = (),
    divisors: list[float] = DIVISORS,
) -> bytes:
    """Return a small E2B of zeros. A change of None leaves that key or that tensor out."""
    pairs = [g.pair("general.architecture", g.STRING, "gemma4")]
    for key, value in (KEYS | (keys or {})).items():
        if value is not None:
            write = g.array if isinstance(value[1], list) else g.pair
            pairs.append(write(f"gemma4.{key}", *value))
    shapes: dict[str, Any] = {"token_embd.weight": (10, 32)}
    shapes |= {"per_layer_token_embd.weight": (10, 128), "per_layer_model_proj.weight": (128, 32)}
    shapes |= {"per_layer_proj_norm.weight": (32,), "output_norm.weight": (32,)}
    for number in range(4):
        shapes |= {f"blk.{number}.{name}": shape for name, shape in layer(number).items()}
    shapes |= (tensors or {}) | {"rope_freqs.weight": (len(divisors),) if divisors else None}
    kept = {name: (shape, 0) for name, shape in shapes.items() if shape is not None}
    infos, zeros = g.laid_out(kept)
    if not divisors:
        return g.container(pairs + list(extra), infos, zeros)
    size = -(-4 * len(divisors) // 32) * 32
    last = np.array(divisors, "<f4").tobytes().ljust(size, b"\0")
    return g.container(pairs + list(extra), infos, zeros[:-size] + last)


TOKENS = ["<pad>", "<eos>", "<bos>", "a", "b", "ab", "<turn|>", "▁", "<|tool_response>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
KINDS = [3, 3, 3, 1, 1, 1, 3, 1, 3] + [6] * 256


def vocabulary(*more: bytes, tokens: Any = (*TOKENS, *BYTES)) -> bytes:
    """Return a model whose file has a tokenizer."""
    described = (
        g.pair("tokenizer.ggml.model", g.STRING, "gemma4"),
        g.array("tokenizer.ggml.tokens", g.STRING, tokens),
        g.array("tokenizer.ggml.token_type", g.I32, KINDS[: len(tokens)]),
    )
    rows = {"token_embd.weight": (265, 32), "per_layer_token_embd.weight": (265, 128)}
    return model(tensors=rows, extra=(*described, *more))


MERGES = g.array("tokenizer.ggml.merges", g.STRING, ["a b"])
OTHER_MERGES = g.array("tokenizer.ggml.merges", g.STRING, ["b a"])
BOS = g.pair("tokenizer.ggml.bos_token_id", g.U32, 2)
NO_BOS = g.pair("tokenizer.ggml.add_bos_token", g.BOOL, 0)


def whole() -> bytes:
    return vocabulary(MERGES, BOS)
