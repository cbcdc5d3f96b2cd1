"""Names are recovered where one way alone fits. By hand, and by law over random renamings."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.parity.naming.recovery import recover, recover_taps
from lockstep.parity.replaying.taps import taps_of
from lockstep.reference.checkpoint.checkpoint import open_checkpoint

B, L = 1, 7
# Spellings of ports that are in use, by the part of ours that they mean.
SPELLINGS = {
    "input_layernorm": ["norm1", "attention_norm", "attnNorm", "ln_1", "input_norm"],
    "self_attn.q_proj": ["attn.wq", "attention.query", "attn.q", "self_attention.q_lin"],
    "self_attn.k_proj": ["attn.wk", "attention.key", "attn.k", "self_attention.k_lin"],
    "self_attn.v_proj": ["attn.wv", "attention.value", "attn.v", "self_attention.v_lin"],
    "self_attn.q_norm": ["attn.q_norm", "attention.query_norm", "attn.qnorm"],
    "self_attn.k_norm": ["attn.k_norm", "attention.key_norm", "attn.knorm"],
    "self_attn.o_proj": ["attn.wo", "attention.out_proj", "attn.proj", "attn_out"],
    "post_attention_layernorm": ["norm2", "ffn_norm", "mlp_norm", "ln_2"],
    "mlp.gate_proj": ["ffn.w1", "mlp.gate", "feed_forward.w_gate"],
    "mlp.up_proj": ["ffn.w3", "mlp.up", "feed_forward.w_up"],
    "mlp.down_proj": ["ffn.w2", "mlp.down", "feed_forward.w_down"],
    "": ["", "resid_post"],
}
BESIDE = {
    "model.embed_tokens": ["tok_embeddings", "embedding", "wte"],
    "model.norm": ["final_norm", "ln_f", "output_norm", "final_norm_out", "finalLayernorm"],
    "lm_head": ["head", "unembed"],
    "logits": ["logits"],
}
LAYERS = ["blocks", "h", "layers", "decoder.layers", "transformer_blocks", "net.block"]


@pytest.fixture(scope="module")
def ours(request) -> dict[str, tuple[int, ...]]:
    """The taps of a model of 2 layers with a mlp twice as wide as its stream."""
    path = request.path.parents[2] / "witnesses/models/untied_float32"
    sizes = {"B": B, "L": L}
    return {
        tap["name"]: tuple(sizes.get(size, size) for size in tap["shape"])
        for tap in taps_of(open_checkpoint(path))
    }


def part_of(tap: str) -> tuple[str, str]:
    """Split a tap into the layer's number and the part."""
    found = re.fullmatch(r"model\.layers\.([0-9]+)\.?(.*)", tap)
    return (found[1], found[2]) if found else ("", tap)


def renaming(data, ours, separator: str, first: int) -> dict[str, str]:
    """Draw a regular renaming of the taps that have other spellings: tap -> name of theirs."""
    stem = data.draw(st.sampled_from(LAYERS))
    chosen = {
        part: data.draw(st.sampled_from(words)) for part, words in (SPELLINGS | BESIDE).items()
    }
    names = {}
    for tap in ours:
        layer, part = part_of(tap)
        if part in SPELLINGS and layer:
            path = f"{stem}.{int(layer) + first}.{chosen[part]}".rstrip(".")
            names[tap] = path.replace(".", separator)
        elif tap in BESIDE:
            names[tap] = chosen[tap].replace(".", separator)
    return names


@given(st.data(), st.sampled_from([".", "/", "_", ":", "->"]), st.sampled_from([0, 1]))
def test_a_regular_renaming_is_undone_or_left_and_never_wrong(ours, data, separator, first):
    """By law: each name goes where it came from, or nowhere, and most go back."""
    names = renaming(data, ours, separator, first)
    dropped = data.draw(st.sets(st.sampled_from(sorted(SPELLINGS)), max_size=4))
    theirs = {name: ours[tap] for tap, name in names.items() if part_of(tap)[1] not in dropped}
    back = {name: tap for tap, name in names.items()}
    found = recover_taps(theirs, ours).names
    own = {name for name in theirs if name in ours}
    assert all(back[name] == tap for name, tap in found.items())
    assert len(set(found.values())) == len(found)
    assert len(found) >= 0.8 * len(theirs.keys() - own)


@given(st.data())
def test_no_names_of_any_kind_are_mapped_two_to_one(ours, data):
    words = st.sampled_from(["attn", "q", "w1", "norm", "ffn", "0", "1", "2", "out", "gate", "x"])
    name = st.lists(words, min_size=1, max_size=4).map(".".join)
    shapes = st.sampled_from(sorted(set(ours.values())))
    theirs = data.draw(st.dictionaries(name, shapes, max_size=30))
    for by_shape in (False, True):
        found = recover(theirs, ours, by_shape=by_shape)
        assert len(set(found.names.values())) == len(found.names)
        assert found.names.keys() <= theirs.keys() and set(found.names.values()) <= ours.keys()
        assert all(theirs[a] == ours[b] for a, b in found.names.items())
        assert sorted([*found.names, *found.unmatched]) == sorted(theirs)


def layered(*parts: str, shape=(1, 7, 8), count: int = 2, stem: str = "model.layers"):
    return {f"{stem}.{n}.{part}": shape for n in range(count) for part in parts}


def test_two_that_mean_one_are_both_left():
    theirs = layered("attn.wq", "attn.query", stem="blocks")
    assert recover(theirs, layered("self_attn.q_proj")).names == {}


def test_one_that_may_mean_two_is_left():
    ours = layered("mlp.up_proj", "mlp.down_proj")
    assert recover(layered("ffn.w3", stem="blocks"), ours).names == {}
    narrow = layered("mlp.up_proj", shape=(1, 7, 16)) | layered("mlp.down_proj")
    found = recover(layered("ffn.w3", shape=(1, 7, 16), stem="blocks"), narrow)
    assert found.names["blocks.0.ffn.w3"] == "model.layers.0.mlp.up_proj"


def test_an_output_may_be_before_or_after_a_softcap():
    ours = {"lm_head": (1, 7, 30), "logits": (1, 7, 30)}
    assert recover({"output": (1, 7, 30)}, ours).names == {}
    assert recover({"head": (1, 7, 30)}, ours).names == {"head": "lm_head"}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("attn.rope_k", "self_attn.k_proj"),
        ("attn.cached_k", "self_attn.k_proj"),
        ("attn.scaled_q", "self_attn.q_proj"),
        ("cross.q", "self_attn.q_proj"),
        ("shared_expert.up_proj", "mlp.up_proj"),
        ("experts.3.w1", "mlp.gate_proj"),
        ("out", ""),
        ("output", ""),
    ],
)
def test_a_word_more_is_another_thing(words, part):
    ours = layered(part) if part else {f"model.layers.{n}": (1, 7, 8) for n in (0, 1)}
    assert recover(layered(words, stem="blocks"), ours).names == {}


@pytest.mark.parametrize("name", ["position_embedding", "image_embed", "rel_pos_embed", "type.wte"])
def test_another_table_is_not_that_of_the_tokens(name):
    assert recover({name: (1, 7, 8)}, {"model.embed_tokens": (1, 7, 8)}).names == {}


def test_an_embedding_may_be_with_that_of_its_place_or_without():
    """In GPT-2 two taps may be called so, and a right port would be accused of either."""
    two = {"transformer.wte": (1, 7, 8), "transformer.drop": (1, 7, 8)}
    for name in ("embedding", "embeddings", "model.embed"):
        assert recover_taps({name: (1, 7, 8)}, two).names == {}
    assert recover_taps({"tok_emb": (1, 7, 8)}, two).names == {"tok_emb": "transformer.wte"}


# What a port of Gemma 4 called its values, and what each is, by hand.
OF_A_GEMMA = {
    "attn.pre_norm": "input_layernorm",
    "attn.query_normed": "self_attn.q_norm",
    "attn.query_roped": "self_attn.q_rope",
    "attn.q_post_rope": "self_attn.q_rope",
    "attn.key_roped": "self_attn.k_rope",
    "attn.value_normed": "self_attn.v_norm",
    "attn.post_norm": "post_attention_layernorm",
    "ffn.pre_norm": "pre_feedforward_layernorm",
    "pre_mlp_norm": "pre_feedforward_layernorm",
    "moe.gate": "router.proj",
    "router_logits": "router.proj",
    "moe.pre_norm": "pre_feedforward_layernorm_2",
    "moe.experts": "experts",
    "moe.post_norm": "post_feedforward_layernorm_2",
    "ple.gate": "per_layer_input_gate",
    "ple.proj": "per_layer_projection",
    "ple.post_norm": "post_per_layer_input_norm",
}


@pytest.mark.parametrize(("words", "part"), OF_A_GEMMA.items())
def test_words_for_the_parts_of_gemma(words, part):
    ours = layered(*{*OF_A_GEMMA.values(), "post_feedforward_layernorm"})
    found = recover(layered(words, stem="blocks"), ours).names
    assert found == {f"blocks.{n}.{words}": f"model.layers.{n}.{part}" for n in (0, 1)}


def test_without_a_norm_of_their_own_experts_have_that_of_the_mlp():
    """So it is in Qwen3-MoE."""
    ours = layered("input_layernorm", "post_attention_layernorm", "mlp.gate", "mlp.experts")
    theirs = layered("moe.pre_norm", "moe.gate", "moe.out", stem="blocks")
    assert set(recover(theirs, ours).names.values()) == {*ours} - {*layered("input_layernorm")}


def test_a_norm_behind_the_mlp_may_be_of_it_alone_where_there_are_experts():
    theirs = layered("ffn_post_norm", stem="blocks")
    alone = layered("post_feedforward_layernorm")
    assert set(recover(theirs, alone).names.values()) == {*alone}
    assert recover(theirs, alone | layered("post_feedforward_layernorm_1")).names == {}


def test_norms_of_gemma_are_not_guessed():
    """`ffn_norm` is what stands before the MLP: in Llama one name of ours, in Gemma another."""
    theirs = layered("ffn_norm", stem="blocks")
    ours = layered("post_attention_layernorm", "pre_feedforward_layernorm")
    assert recover(theirs, ours).names == {}


def test_other_layers_or_shapes_do_not_fit():
    ours = layered("self_attn.q_proj")
    assert recover(layered("attn.wq", stem="blocks", count=3), ours).names == {}
    assert recover(layered("attn.wq", stem="blocks", shape=(1, 7, 9)), ours).names == {}
    assert recover({"blocks.0.attn.wq": (1, 7, 8)}, ours).names == {}


def test_weights_of_some_layers_are_not_the_model():
    assert (
        recover({"blocks.0.attn.wq": (8, 8)}, layered("self_attn.q_proj", shape=(8, 8))).names == {}
    )


def test_names_of_another_kind_of_model_are_names_like_any():
    """A Llama in a fork of nanoGPT still calls its modules as GPT-2 does."""
    parts = ("ln_1", "attn.c_proj", "ln_2", "mlp.c_proj")
    theirs = layered(*parts, stem="transformer.h") | {"transformer.wte": (1, 7, 8)}
    ours = layered(
        "input_layernorm", "self_attn.o_proj", "post_attention_layernorm", "mlp.down_proj"
    ) | {"model.embed_tokens": (1, 7, 8)}
    assert sorted(recover_taps(theirs, ours).names.values()) == sorted(ours)
    assert recover_taps({"transformer.h.0.mlp.act": (1, 7, 8)}, ours).names == {}


def test_the_output_of_a_module_is_its_last_part_unless_that_has_a_name():
    ours = layered("self_attn.o_proj", "mlp.down_proj")
    whole = layered("attn_out", "feed_forward_out", stem="blocks")
    assert sorted(recover(whole, ours).names.values()) == sorted(ours)
    both = recover(whole | layered("ffn.w_down", stem="blocks"), ours).names
    assert both["blocks.1.ffn.w_down"] == "model.layers.1.mlp.down_proj"
    assert "blocks.1.feed_forward_out" not in both and "blocks.1.attn_out" in both


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("attn.q_rot", "q_rope"),
        ("attention.rope_k", "k_rope"),
        ("attn.att", "probs"),
        ("attn.attn_weights", "probs"),
        ("attn.ctx", "context"),
    ],
)
def test_what_no_module_owns_is_known_by_its_words(words, part):
    ours = layered(*(f"self_attn.{one}" for one in ("q_rope", "k_rope", "probs", "context")))
    found = recover(layered(words, stem="blocks"), ours).names
    assert set(found.values()) == set(layered(f"self_attn.{part}"))


def test_without_a_softcap_an_output_is_the_logits():
    ours = {"lm_head": (1, 7, 30), "logits": (1, 7, 30)}
    gemma = ours | layered("pre_feedforward_layernorm")
    assert recover_taps({"output": (1, 7, 30)}, ours).names == {"output": "logits"}
    assert recover_taps({"output": (1, 30)}, ours).names == {"output": "logits"}  # the last token's
    assert recover_taps({"output": (1, 7, 30)}, gemma).names == {}


def test_shapes_alone_count_only_where_they_are_asked_and_leave_one_way():
    ours = layered("a_proj", shape=(3, 5)) | layered("b_proj", shape=(4, 5))
    theirs = layered("one", shape=(3, 5), stem="x") | layered("two", shape=(4, 5), stem="x")
    assert recover(theirs, ours).names == {}
    assert recover(theirs, ours, by_shape=True).names["x.1.two"] == "model.layers.1.b_proj"
    several = theirs | layered("three", shape=(4, 5), stem="x")
    assert set(recover(several, ours, by_shape=True).names.values()) == set(layered("a_proj"))


def test_taps_that_the_dump_has_are_given_to_no_other():
    ours = layered("self_attn.q_proj")
    theirs = layered("attn.wq", stem="blocks") | {"model.layers.0.self_attn.q_proj": (1, 7, 8)}
    assert recover_taps(theirs, ours).names == {}


def test_the_plan_says_what_was_taken_for_what():
    found = recover(layered("attn.wq", stem="blocks"), layered("self_attn.q_proj"))
    assert found.plan == [
        "2 names recovered by their pattern",
        "blocks.{layer}.attn.wq taken for model.layers.{layer}.self_attn.q_proj in 2 layers",
    ]
    one = recover({"tok_emb": (1, 7, 8)}, {"model.embed_tokens": (1, 7, 8)})
    assert one.plan[0] == "1 name recovered by its pattern"
    shifted = {name.replace("1", "2").replace("0", "1"): shape for name, shape in
               layered("attn.wq", stem="blocks").items()}  # fmt: skip
    assert "counted from 1" in recover(shifted, layered("self_attn.q_proj")).plan[0]


# Names of files that are in use: GGUF, and Meta's own of Llama.
PUBLISHED = {
    "model.embed_tokens": ("token_embd", "tok_embeddings"),
    "model.layers.N.input_layernorm": ("blk.N.attn_norm", "layers.N.attention_norm"),
    "model.layers.N.self_attn.q_proj": ("blk.N.attn_q", "layers.N.attention.wq"),
    "model.layers.N.self_attn.k_proj": ("blk.N.attn_k", "layers.N.attention.wk"),
    "model.layers.N.self_attn.v_proj": ("blk.N.attn_v", "layers.N.attention.wv"),
    "model.layers.N.self_attn.o_proj": ("blk.N.attn_output", "layers.N.attention.wo"),
    "model.layers.N.self_attn.q_norm": ("blk.N.attn_q_norm", "layers.N.attention.q_norm"),
    "model.layers.N.self_attn.k_norm": ("blk.N.attn_k_norm", "layers.N.attention.k_norm"),
    "model.layers.N.post_attention_layernorm": ("blk.N.ffn_norm", "layers.N.ffn_norm"),
    "model.layers.N.mlp.gate_proj": ("blk.N.ffn_gate", "layers.N.feed_forward.w1"),
    "model.layers.N.mlp.up_proj": ("blk.N.ffn_up", "layers.N.feed_forward.w3"),
    "model.layers.N.mlp.down_proj": ("blk.N.ffn_down", "layers.N.feed_forward.w2"),
    "model.norm": ("output_norm", "norm"),
    "lm_head": ("output", "output"),
}


@pytest.mark.parametrize("kind", [0, 1], ids=["gguf", "meta"])
def test_the_names_of_published_weights(kind, request):
    """By hand."""
    path = request.path.parents[2] / "witnesses/models/untied_float32"
    checkpoint = open_checkpoint(path)
    ours = {name: checkpoint.stored(name).shape for name in checkpoint.names}
    back = {}
    for name in ours:
        module = name.removesuffix(".weight")
        layer = re.search("[0-9]+", module)
        number = layer[0] if layer else ""
        template = module.replace(f".{number}.", ".N.") if layer else module
        back[PUBLISHED[template][kind].replace("N", number) + ".weight"] = name
    found = recover({name: ours[tap] for name, tap in back.items()}, ours)
    assert found.names == back and found.unmatched == []


@pytest.mark.parametrize(
    "name",
    ["output_norm_out", "finalNormOut", "final_norm_out", "final_layernorm", "ln_f_out",
     "last_norm", "transformer/norm", "model/norm/__call__",
     "intermediates/model/final_norm/__call__",
     "['model']['norm']['__call__'][0]"],
)  # fmt: skip
def test_the_last_norm_by_the_words_of_strangers(ours, name):
    assert recover_taps({name: ours["model.norm"]}, ours).names == {name: "model.norm"}


@pytest.mark.parametrize("name", ["vision_norm", "pre_norm", "final_hidden", "image/norm/__call__"])
def test_another_norm_is_not_the_last_one(ours, name):
    assert recover_taps({name: ours["model.norm"]}, ours).names == {}


def test_a_norm_and_what_is_called_its_output_are_not_both_taken(ours):
    parts = ("ffn_norm", "ffn_norm_out")
    both = {f"blocks.{n}.{part}": ours["model.norm"] for n in (0, 1) for part in parts}
    named = {f"blocks.{n}.ffn_norm": f"model.layers.{n}.post_attention_layernorm" for n in (0, 1)}
    assert recover_taps(both, ours).names == named


# What Flax calls what the modules of a port return, by the part of ours that they mean.
RETURNED = {
    "": "",
    "attention_norm/": "input_layernorm",
    "attention/wq/": "self_attn.q_proj",
    "attention/q_norm/": "self_attn.q_norm",
    "attention/": "self_attn.o_proj",
    "ffn_norm/": "post_attention_layernorm",
    "feed_forward/w1/": "mlp.gate_proj",
    "feed_forward/": "mlp.down_proj",
}


@pytest.mark.parametrize("form", ["{path}__call__", "['{keys}']['__call__'][0]"])
def test_what_flax_says_a_module_returned(ours, form):
    """By hand: `capture_intermediates` writes `__call__` behind the path of each module."""

    def name(path):
        return form.format(path=path, keys=path.removesuffix("/").replace("/", "']['"))

    parts = {name(f"model/layers_{n}/{theirs}"): f"model.layers.{n}.{part}".rstrip(".")
             for n in (0, 1) for theirs, part in RETURNED.items()}  # fmt: skip
    parts |= {name("model/embed_tokens/"): "model.embed_tokens", name("lm_head/"): "lm_head"}
    theirs = {one: ours[tap] for one, tap in parts.items()}
    assert recover_taps(theirs, ours).names == parts


def test_of_two_calls_of_a_module_the_second_is_none(ours):
    names = [f"model/layers_{n}/attention/__call__/1" for n in (0, 1)]
    assert recover_taps(dict.fromkeys(names, ours["model.norm"]), ours).names == {}
