"""What ports call the parts of a layer: words that mean one part, whatever the spelling around it.

A word that different ports use for different parts lists all of them; shapes then have to decide.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

NORM = r"(rms_?norm|layer_?norm|norm|ln|rms)"
TURNED = r"((post|after)_)?(rope|roped|rotary|rot|rotated|turned)"
F = r"(ffn|mlp|feed_?forward|ff)"
# What may stand before a word: only what says that it is of this block.
A = r"((self_)?(attn|attention|mha)_)?"
M = r"((mlp|ffn|ff|feed_forward)_)?"
N = r"((block|layer)_)?"
T = r"(intermediates_)?((model|transformer|decoder|net)_)?"
# What a name says -> parts that it may mean. All that match are taken together; the first group
# of names stands in a layer, the second beside the layers. Spelled with `_` for every separator.
IN_LAYER: tuple[tuple[str, tuple[str, ...]], ...] = (
    (rf"{A}(wq|q|q_?proj|q_lin|query|query_proj|to_q|attn_q)", ("self_attn.q_proj",)),
    (rf"{A}(wk|k|k_?proj|k_lin|key|key_proj|to_k|attn_k)", ("self_attn.k_proj",)),
    (rf"{A}(wv|v|v_?proj|v_lin|value|value_proj|to_v|attn_v)", ("self_attn.v_proj",)),
    (
        rf"{A}(attn|attention|self_attn|self_attention|mha)_(wo|o|o_?proj|out|out_?proj|output|proj|c_proj|to_out)"
        rf"|{A}(wo|o_?proj|attn_out|attn_output|c_proj_attn)",
        ("self_attn.o_proj", "attn.c_proj"),
    ),
    (rf"{A}(q_?{NORM}|{NORM}_?q|query_{NORM}|attn_q_{NORM})", ("self_attn.q_norm",)),
    (rf"{A}(k_?{NORM}|{NORM}_?k|key_{NORM}|attn_k_{NORM})", ("self_attn.k_norm",)),
    (rf"{A}(v_?{NORM}|{NORM}_?v|value_{NORM}|attn_v_{NORM})", ("self_attn.v_norm",)),
    (rf"{A}((q|query)_normed|normed_(q|query))", ("self_attn.q_norm",)),
    (rf"{A}((k|key)_normed|normed_(k|key))", ("self_attn.k_norm",)),
    (rf"{A}((v|value)_normed|normed_(v|value))", ("self_attn.v_norm",)),
    (
        rf"{A}(qkv|c_attn|wqkv|w_qkv|qkv_?proj|attn_qkv|to_qkv|query_key_value)",
        ("attn.c_attn", "self_attn.qkv_proj"),
    ),
    (rf"{A}(kv|wkv|w_kv|kv_?proj|attn_kv|to_kv|key_value)", ("self_attn.kv_proj",)),
    (rf"{M}(gate_up|gate_up_?proj|gate_and_up|w13|w12|wi)", ("mlp.gate_up_proj",)),
    (rf"{M}(gate|gate_proj|wg|ffn_gate|linear_gate|w_gate|w1)", ("mlp.gate_proj",)),
    (rf"{M}(up|up_proj|wu|ffn_up|linear_up|w_up)", ("mlp.up_proj",)),
    (rf"{M}(down|down_proj|wd|ffn_down|linear_down|w_down)", ("mlp.down_proj",)),
    (rf"{M}(w2|w3)", ("mlp.up_proj", "mlp.down_proj")),
    (rf"{M}(mlp|ffn|ff|feed_forward)_(fc_?1|fc_?in|c_fc|dense_h_to_4h)", ("mlp.c_fc",)),
    (
        rf"{M}(mlp|ffn|ff|feed_forward)_(fc_?2|fc_?out|c_proj|dense_4h_to_h)",
        ("mlp.c_proj",),
    ),
    (r"(mlp|ffn|ff|feed_forward)_(proj|c_proj)", ("mlp.down_proj",)),
    (rf"{A}(q|query)_{TURNED}|{A}{TURNED}_(q|query)", ("self_attn.q_rope",)),
    (rf"{A}(k|key)_{TURNED}|{A}{TURNED}_(k|key)", ("self_attn.k_rope",)),
    (
        rf"{A}((attn|attention)_)?(probs|weights|softmax)|(attn|attention|self_attn)_att",
        ("self_attn.probs", "attn.probs"),
    ),
    (rf"{A}(context|ctx)|(attn|attention|self_attn)_y", ("self_attn.context", "attn.context")),
    (
        rf"{N}(input_{NORM}|(pre_)?(attn|attention)_{NORM}|{NORM}_?1|{NORM}_attn)"
        rf"|(attn|attention)_pre_?{NORM}",
        ("input_layernorm", "ln_1"),
    ),
    (
        rf"{N}((pre_)?{F}_{NORM}|{NORM}_?2|{NORM}_(mlp|ffn)|{F}_pre_?{NORM})",
        ("post_attention_layernorm", "ln_2", "pre_feedforward_layernorm"),
    ),
    (
        rf"{N}post_(attn|attention)_{NORM}|(attn|attention)_post_?{NORM}",
        ("post_attention_layernorm",),
    ),
    (rf"{N}post_(ffn|feed_?forward)_{NORM}", ("post_feedforward_layernorm",)),
    # Of all that a layer adds, or of the part beside the experts.
    (rf"{F}_post_?{NORM}", ("post_feedforward_layernorm", "post_feedforward_layernorm_1")),
    (
        rf"(moe|experts)_pre_?{NORM}",
        ("post_attention_layernorm", "pre_feedforward_layernorm_2"),
    ),
    (rf"(moe|experts)_post_?{NORM}", ("post_feedforward_layernorm_2",)),
    (
        r"(mlp_|moe_|ffn_)?router(_logits|_proj)?|(mlp_|moe_)gate_inp|ffn_gate_inp|moe_gate"
        r"|((mlp|moe)_)?gate_logits",
        ("mlp.gate", "router.proj"),
    ),
    (r"(ple|per_layer)(_input)?_gate", ("per_layer_input_gate",)),
    (r"(ple|per_layer)_(proj|projection)", ("per_layer_projection",)),
    (
        rf"(ple|per_layer(_input)?)_post_?{NORM}|post_(ple|per_layer(_input)?)_{NORM}",
        ("post_per_layer_input_norm",),
    ),
    (r"", ("",)),
    (r"(hook_)?resid_post", ("",)),
    (r"(hook_)?resid_mid", ("residual",)),
    (r"(hook_)?mlp_out", ("mlp.down_proj",)),
)
# The output of a module, which its last part has. A bare `mlp` may be the stream behind it.
WHOLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"(mlp|ffn|ff|feed_forward)_(out|output)", ("mlp.experts", "mlp.down_proj", "mlp.c_proj")),
    (r"moe_(out|output)|(moe_)?experts(_out|_output)?", ("mlp.experts", "experts")),
)
# What says of a norm, or of a projection, that it is its output: `final_norm_out`.
OUTPUT = re.compile(rf"(.*(?:{NORM}(?:_?[12f]|_final)?|_proj))_(?:out|output)")
# What says outright which of two norms it is, where a model has it.
OUTRIGHT: tuple[tuple[str, tuple[str, ...]], ...] = (
    (rf"{N}pre_{F}_{NORM}|{F}_pre_?{NORM}", ("pre_feedforward_layernorm",)),
    (rf"(moe|experts)_pre_?{NORM}", ("pre_feedforward_layernorm_2",)),
)
# The stream behind a layer, by what stands before its number where nothing stands behind it:
# `any.layers` unless that is something in a layer or beside the layers, and `h` in a model's name.
MINE = (
    r"(model|lm|llm|transformer|decoder|net|network|module|gpt|llama|qwen|mistral|gemma|backbone|"
    r"language|text|base|inner|self|my|the)[0-9]*"
)
OTHERS = (
    r"(attn|attention|mha|mlp|ffn|ff|feed_forward|moe|experts?|router|(layer_?|rms_?)?norm|ln|rope|rotary|"
    r"emb[a-z0-9]*|head|vision|visual|image|audio|draft|mtp|pre|in|input)"
)
STREAM = re.compile(
    rf"(?!([a-z0-9]+_)*{OTHERS}_)([a-z0-9]+_)*(layers?|blocks?|blk|resblocks)|({MINE}_)*(h|l)|"
    r"(hook_)?resid_post|(layer|block|l)_(outs?|outputs?)"
)
BARE = ("h", "l")  # also a hidden state's name
# What else ports call streams: no proof by itself. By what stands before the number, nothing
# behind it; and behind the number of something that is a layer.
STATES = (
    r"((all|layer|block)_)?(hiddens?|hidden_?states?|states?|hs?|xs?|streams?|resid|"
    r"residual_stream)"
)
USUAL = re.compile(rf"({MINE}_)*({STATES})")
GIVEN = re.compile(rf"out|outs|outputs?|{STATES}")
BESIDE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        rf"{T}(tok_embeddings|token_embd|embed_tokens|wte|tok_emb|token_embedding|word_embeddings|"
        r"tok_embed)",
        ("model.embed_tokens", "transformer.wte"),
    ),
    # Of the token alone, or with that of its place: which of them no word says.
    (
        rf"{T}(embed|embedding|embeddings|embedder)",
        ("model.embed_tokens", "transformer.wte", "transformer.drop"),
    ),
    (rf"{T}(wpe|pos_emb|position_embeddings|pos_embed|position_embd)", ("transformer.wpe",)),
    (
        rf"{T}((final|last|output|out|result)_{NORM}|{NORM}(_?f|_out|_final)?|normed_final|final_normed)",
        ("model.norm", "transformer.ln_f"),
    ),
    (rf"{T}(lm_head|head|unembed|unembedding|output_proj|logits_proj)", ("lm_head",)),
    # Before or after a softcap: of activations nobody can say, of weights there is one alone.
    (rf"{T}output", ("lm_head", "logits")),
    (rf"{T}logits", ("logits",)),
)
PATTERNS = {
    True: [(re.compile(pattern), parts) for pattern, parts in IN_LAYER],
    False: [(re.compile(pattern), parts) for pattern, parts in BESIDE],
}
MODULES = [(re.compile(pattern), parts) for pattern, parts in WHOLES]
TOLD = [(re.compile(pattern), parts) for pattern, parts in OUTRIGHT]


@lru_cache(maxsize=256)
def parts_meant(words: str, *, in_layer: bool) -> frozenset[str]:
    """Return the parts that the words of a name may mean, none if they say nothing."""
    return said_by(words, PATTERNS[in_layer])


def is_stream(stem: str) -> bool:
    """Tell whether what is numbered so, `blocks.3` by `blocks`, is the stream behind a layer."""
    return STREAM.fullmatch(stem) is not None


def is_usual_for_streams(stem: str, words: str) -> bool:
    """Tell whether ports call streams so: `hidden_states` before a number, `output` behind it."""
    if words:
        return is_stream(stem) and GIVEN.fullmatch(words) is not None
    return is_stream(stem) or USUAL.fullmatch(stem) is not None


@lru_cache(maxsize=256)
def told_outright(words: str, *, in_layer: bool) -> frozenset[str]:
    """Return the parts that the words of a name mean in every model that has them."""
    return said_by(words, TOLD) if in_layer else frozenset()


@lru_cache(maxsize=256)
def wholes_meant(words: str, *, in_layer: bool) -> frozenset[str]:
    """Return the parts that the words of a name may mean as what a module, or they, give."""
    part = OUTPUT.fullmatch(words)
    if part is not None:
        told = told_outright(part[1], in_layer=in_layer)
        return told or parts_meant(part[1], in_layer=in_layer)
    return said_by(words, MODULES) if in_layer else frozenset()


def said_by(
    words: str, patterns: Iterable[tuple[re.Pattern[str], Sequence[str]]]
) -> frozenset[str]:
    found = (parts for pattern, parts in patterns if pattern.fullmatch(words))
    return frozenset(part for parts in found for part in parts)
