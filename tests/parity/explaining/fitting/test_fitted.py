"""Numbers of a port's own are found from what it dumped. By hand: formulas in plain NumPy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.parity.explaining.fitting import beside, fitted
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.numbers import NUMBERS
from lockstep.parity.faults.rewrites import instead
from tests.parity.explaining.by_loop import OWN_NORM, experts_by_loop
from tests.parity.explaining.ports import explained, model_of, port
from tests.parity.explaining.test_room import found_of, with_adapters
from tests.sampled import sampled

QWEN, MISTRAL, GEMMA = "models/untied_float32", "llama/mistral_window", "gemma4/sparse"
AT = "model.layers.1.self_attn."
# All have too many others to look through first, where tests are many.
KNOWN = [one for one in catalogue() if one.id in NUMBERS or one.family in ("mask", "activation")]


def test_the_page_says_how_much_work_fitting_may_take():
    """By law: in words, twice."""
    words = {1 / 4: "quarter", 1 / 6: "sixth", 1 / 8: "eighth"}
    alone, together = words[fitted.SHARE], words[beside.SHARE]
    page = (Path(__file__).parents[4] / "docs/parity/how-explain-works.md").read_text("utf-8")
    assert f"| a {alone}, and a {together} for numbers beside a bug |" in page
    assert f"So a {alone} of a search's work is enough" in page


def changed(name, tap, value):
    """Return what explain says of a right port, of which one value is another, the last dumped."""
    taps = {key: one for key, one in port(name, level="taps").items() if not is_inner(key)}
    made = value({key: one.astype(np.float64) for key, one in taps.items()})
    before = [*taps][: [*taps].index(tap)]
    changed = {key: taps[key] for key in before} | {tap: made.astype(np.float32)}
    return explained(name, changed, faults=KNOWN)


def is_inner(tap):
    return tap.rpartition(".")[2] in ("scores", "probs", "routing")


def normed(x, gain, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def turned(x, base, first=0):
    """Turn heads (B, H, L, D) from a first position on."""
    half = x.shape[-1] // 2
    angles = (first + np.arange(x.shape[2]))[:, None] * base ** -(np.arange(half) / half)
    one, other = x[..., :half], x[..., half:]
    return np.concatenate(
        [one * np.cos(angles) - other * np.sin(angles),
         other * np.cos(angles) + one * np.sin(angles)], axis=-1,
    )  # fmt: skip


def attended(taps, at, scale, window, hidden=lambda score: -np.inf):
    """Attend by a loop over heads and queries; two heads share keys and values.

    Keys that a query must not see have the score that `hidden` makes of theirs.
    """
    queries, keys, values = taps[at + "q_rope"], taps[at + "k_rope"], taps[at + "v_proj"]
    batch, heads, length, width = queries.shape
    values = values.reshape(batch, length, -1, width)
    out = np.zeros((batch, length, heads, width))
    for head in range(heads):
        group = head // (heads // keys.shape[1])
        for query in range(length):
            scores = scale * keys[0, group] @ queries[0, head, query]
            seen = range(max(query - window + 1, 0), query + 1)
            every = [one if key in seen else hidden(one) for key, one in enumerate(scores)]
            weights = np.exp(every)
            out[0, query, head] = weights / weights.sum() @ values[0, :, group]
    return out.reshape(batch, length, -1)


def told(found):
    assert not found.unexplained
    return [(bug.id, bug.variant, bug.layers) for bug in found.faults]


@pytest.mark.parametrize("eps", [3e-3, 4e-4, 2.5])
def test_the_eps_of_a_norm(eps):
    gain = model_of(QWEN).checkpoint.tensor("model.norm.weight")
    found = changed(QWEN, "model.norm", lambda taps: normed(taps["model.layers.1"], gain, eps))
    assert told(found) == [("rms-eps-wrong", f"eps = {eps:g} for 0.001", [])]


@pytest.mark.parametrize("base", [1234.0, 37.0, 75_000.0])
def test_the_base_of_rope(base):
    def wrong(taps):
        return turned(taps[AT + "q_norm"].swapaxes(1, 2), base)

    found = changed(QWEN, AT + "q_rope", wrong)
    assert told(found) == [("rope-theta-default", f"base {base:g} for 10000", [1])]


@sampled(1)
@pytest.mark.parametrize(("scale", "window", "id", "said"), [
    (0.2, 9, "attn-scale-wrong", "scores times 0.2 for 0.3162278"),
    (1.75, 9, "attn-scale-wrong", "scores times 1.75 for 0.3162278"),
    (10**-0.5, 4, "mask-window-wrong", "a window of 4 keys for 9"),
    (10**-0.5, 14, "mask-window-wrong", "a window of 14 keys for 9"),
])  # fmt: skip
def test_the_scale_and_the_window_of_attention(scale, window, id, said):
    found = changed(MISTRAL, AT + "context", lambda taps: attended(taps, AT, scale, window))
    assert told(found) == [(id, said, [1])]


def test_the_cap_of_the_logits():
    table = model_of(GEMMA).checkpoint.tensor("model.embed_tokens.weight").astype(np.float64)
    found = changed(GEMMA, "logits", lambda taps: 2.4 * np.tanh(taps["model.norm"] @ table.T / 2.4))
    assert told(found) == [("softcap-wrong", "cap 2.4 for 1.5", [])]


def test_a_cap_of_logits_that_have_none():
    taps = port(QWEN, level="layers")
    taps = taps | {"logits": 2.5 * np.tanh(taps["logits"] / 2.5)}
    assert told(explained(QWEN, taps, faults=KNOWN)) == [
        ("softcap-wrong", "cap 2.5 where there is none", [])
    ]


@pytest.mark.parametrize("level", ["taps", "modules"])
def test_a_cap_of_scores_that_have_none(level):
    def cut(ops, queries, keys, *, scale):
        scores = ops.attention_scores(queries, keys, scale=scale)
        return (1.5 * np.tanh(scores / 1.5)).astype(scores.dtype)

    taps = port(QWEN, [instead("attention_scores", cut)], level=level)
    assert told(explained(QWEN, taps, faults=KNOWN)) == [
        ("softcap-wrong", "scores with a cap of 1.5 where there is none", [0, 1])
    ]


@pytest.mark.parametrize("level", ["taps", "modules", "layers"])
def test_a_window_in_a_model_that_has_none(level):
    """By hand: of 20 tokens each sees 8 at most."""
    seen = np.tril(np.ones((20, 20), bool)) & ~np.tril(np.ones((20, 20), bool), -8)

    def cut(ops, scores, mask, **options):
        rows, held = scores.shape[-2:]
        return ops.softmax(scores, mask & seen[:rows, :held], **options)

    taps = port(QWEN, [instead("softmax", cut)], level=level)
    assert told(explained(QWEN, taps, faults=KNOWN)) == [
        ("mask-window-wrong", "a window of 8 keys where there is none", [0, 1])
    ]


@pytest.mark.parametrize("level", ["taps", "modules"])
@pytest.mark.parametrize("width", [4, 10, 16])
def test_a_part_of_a_head_that_turns_where_all_should(width, level):
    """By hand: the first numbers turn among themselves, as those of a head of that width do."""

    def in_part(ops, x, at, by, *, factor):
        first = turned(x[..., :width].astype(np.float64), model_of(QWEN).config.rope_theta)
        return np.concatenate([first.astype(x.dtype), x[..., width:]], axis=-1)

    taps = port(QWEN, [instead("rope", in_part)], level=level)
    said = f"the first {width} numbers of a head turn for 20"
    assert told(explained(QWEN, taps, faults=KNOWN)) == [("rope-stretch-wrong", said, [0, 1])]


def test_a_part_of_a_head_that_turns_by_exponents_of_all_of_it():
    """By hand: eight numbers of a head of twenty turn, as fast as its first four pairs."""
    width, base = 8, model_of(QWEN).config.rope_theta

    def in_part(ops, x, at, by, *, factor):
        angles = np.arange(x.shape[2])[:, None] * base ** (-np.arange(width // 2) * 2 / 20)
        one, other = x[..., :4].astype(np.float64), x[..., 4:8].astype(np.float64)
        cos, sin = np.cos(angles), np.sin(angles)
        parts = (one * cos - other * sin, other * cos + one * sin)
        return np.concatenate([*(some.astype(x.dtype) for some in parts), x[..., 8:]], axis=-1)

    found = explained(QWEN, port(QWEN, [instead("rope", in_part)], level="modules"), faults=KNOWN)
    said = "the first 8 numbers of a head turn, by exponents of all of it for 20"
    assert told(found) == [("rope-stretch-wrong", said, [0, 1])]


def test_activations_that_are_cut_off():
    at = "model.layers.1.mlp.act_fn"
    most = 0.3 * port(QWEN, level="taps")[at].max()
    assert most > 0
    found = changed(QWEN, at, lambda taps: np.minimum(taps[at], most))
    assert [(bug.id, bug.layers) for bug in found.faults] == [("activation-clamped", [1])]
    assert float(str(found.faults[0].variant).split()[2]) == pytest.approx(most, rel=1e-6)


@pytest.mark.parametrize(("count", "named"), [(1, []), (2, ["activation-clamped"])])
def test_a_bound_is_seen_in_more_than_one_number(count, named):
    """One number that is too small may be anything; two that end at the same value are cut off."""
    at = "model.layers.1.mlp.act_fn"
    largest = np.sort(port(QWEN, level="taps")[at], axis=None)[::-1]
    most = 0.5 * (largest[count - 1] + largest[count])
    found = changed(QWEN, at, lambda taps: np.minimum(taps[at], most))
    assert [bug.id for bug in found.faults] == named
    assert [one.tap for one in found.unexplained] == [at][len(named) :]


def test_a_bound_that_one_layer_alone_reaches():
    """What is right in the other says nothing against it, as no activation reaches it there."""
    at, taps = "model.layers.{}.mlp.{}", port(QWEN, level="taps")
    quiet, loud = sorted(range(2), key=lambda layer: taps[at.format(layer, "act_fn")].max())
    gates, up, last = (at.format(loud, one) for one in ("act_fn", "up_proj", "down_proj"))
    most = max(taps[at.format(quiet, "act_fn")].max(), 0.3 * taps[gates].max())
    weight = model_of(QWEN).checkpoint.tensor(last + ".weight")
    made = np.minimum(taps[gates], most) * taps[up].astype(np.float64) @ weight.T.astype(float)
    inner = [tap for tap in taps if is_inner(tap) or tap.endswith("act_fn")]
    given = {tap: taps[tap] for tap in [*taps][: [*taps].index(last)] if tap not in inner}
    found = explained(QWEN, given | {last: made.astype(np.float32)}, faults=KNOWN)
    assert [(bug.id, bug.layers) for bug in found.faults] == [("activation-clamped", [loud])]


@pytest.mark.parametrize(("said", "hidden"), [
    ("lowered by 10 where there is none", lambda score: score - 10.0),
    ("set to -5 where there is none", lambda score: -5.0),
])  # fmt: skip
def test_what_is_masked_by_a_small_number(said, hidden):
    def context(taps):
        return attended(taps, AT, 10**-0.5, 9, hidden)

    found = changed(MISTRAL, AT + "context", context)
    assert told(found) == [("mask-sentinel-too-small", said, [1])]


def test_the_scale_of_the_embedding():
    found = changed(GEMMA, "model.embed_tokens", lambda taps: taps["model.embed_tokens"] * 0.75)
    assert told(found) == [("multiplier-wrong", "times 4.242641 for 5.656854", [])]


@pytest.mark.parametrize(("length", "dtype"), [(1, "float32"), (20, "bfloat16")])
def test_a_gain_of_a_norm_is_no_epsilon(length, dtype):
    """Where there is one token, or digits are few, some epsilon would do the same."""
    last = "model.layers.1.post_attention_layernorm"
    taps = port(QWEN, level="modules", length=length, dtype=dtype)
    taps = {tap: taps[tap] for tap in [*taps][: [*taps].index(last) + 1]}
    taps[last] = (0.7 * taps[last].astype(np.float32)).astype(taps[last].dtype)
    found = explained(QWEN, taps, faults=KNOWN, length=length)
    assert (found.verdict, found.faults) == ("unknown", [])


def test_a_projection_that_is_off_in_one_layer_is_no_scale_of_the_scores():
    def wrong(call, graph):
        here = any("layers.1.self_attn.q_proj" in tap for tap in call.taps)
        return call.followed(lambda ops, x: ops.scale(x, by=0.7)) if here else None

    found = explained(MISTRAL, port(MISTRAL, [wrong], level="layers"), faults=KNOWN)
    assert (found.verdict, found.faults) == ("unknown", [])


def test_a_factor_that_no_model_has_is_no_number():
    """It is told by its size: where it comes from cannot be known."""
    found = changed(QWEN, AT + "v_proj", lambda taps: 0.7 * taps[AT + "v_proj"])
    assert (found.verdict, found.faults) == ("unknown", [])


@pytest.mark.parametrize("count", [3, 4])
def test_the_number_of_experts(count):
    at = "model.layers.0."

    def wrong(taps):
        return experts_by_loop(model_of(GEMMA), taps, at, taps[at + OWN_NORM], count)

    found = changed(GEMMA, at + "experts", wrong)
    said = "one expert more" if count == 3 else f"{count} experts for 2"
    assert told(found) == [("moe-top-k-wrong", said, [0])]


@pytest.mark.parametrize("by", [1.7, 0.25])
def test_the_scale_of_an_adapter(by):
    """By law: its products are so many times as large."""
    model = with_adapters(lambda path, one: (path, replace(one, scale=by * one.scale)))
    found = found_of(model, faults=KNOWN)
    assert told(found) == [("lora-scale-wrong", f"times {5 * by:g} for 5", [1])]


def in_both_layers(model):
    """Give the first layer the adapters of the second."""
    modules = model.adapters.modules
    more = {path.replace(".layers.1.", ".layers.0."): one for path, one in modules.items()}
    model.adapters = replace(model.adapters, modules=more | modules)
    return model


@pytest.mark.parametrize("beside", [(), ("gqa-tile-vs-repeat",)])
@pytest.mark.parametrize("by", [1.7, 0.25])
def test_the_scale_of_adapters_on_every_matrix(by, beside):
    """By law. Then most matrices are wrong, and yet it is no other checkpoint: what attention makes
    of them is searched as in any port."""
    right = in_both_layers(with_adapters(lambda path, one: (path, one)))
    wrong = in_both_layers(
        with_adapters(lambda path, one: (path, replace(one, scale=by * one.scale)))
    )
    faults = [*KNOWN, *(one for one in catalogue() if one.id == "gqa-tile-vs-repeat")]
    found = found_of(wrong, *beside, faults=faults, right=right)
    assert told(found)[0] == ("lora-scale-wrong", f"times {5 * by:g} for 5", [0, 1])
    assert [id for id, _, _ in told(found)[1:]] == [*beside]
    assert not any("checkpoint" in line for line in found.conventions)


def test_no_number_is_fitted_to_what_is_wrong_otherwise():
    """A norm that also takes the mean away from every other token has no number for that."""
    gain = model_of(QWEN).checkpoint.tensor("model.norm.weight")

    def wrong(taps):
        x = taps["model.layers.1"].copy()
        x[:, ::2] -= x[:, ::2].mean(axis=-1, keepdims=True)
        return normed(x, gain, 1e-3)

    found = changed(QWEN, "model.norm", wrong)
    assert not found.faults and len(found.unexplained) == 1


def test_a_number_among_known_bugs_of_other_modules():
    """The search goes on with what was fitted: the bugs of other values stay."""
    taps = port(QWEN, ["act-silu-vs-gelu[gelu (tanh) for silu]"], level="taps")
    gain = model_of(QWEN).checkpoint.tensor("model.norm.weight")
    made = normed(taps["model.layers.1"].astype(np.float64), gain, 0.02).astype(np.float32)
    head = model_of(QWEN).checkpoint.tensor("lm_head.weight")
    found = explained(QWEN, taps | {"model.norm": made, "logits": made @ head.T}, faults=KNOWN)
    assert [(bug.id, bug.variant) for bug in found.faults] == [
        ("act-silu-vs-gelu", "gelu (tanh) for silu"), ("rms-eps-wrong", "eps = 0.02 for 0.001")
    ]  # fmt: skip


def test_a_multiplier_of_the_weights_of_experts():
    """By hand: DeepSeek multiplies them."""

    def wrong(call, graph):
        scaled = call.followed(lambda ops, x: x * x.dtype.type(2.5))
        return scaled if call.op == "top_k_routing" else None

    name, said = "qwen3_moe/fused", "the weights of experts times 2.5 for 1"
    found = explained(name, port(name, [wrong], level="modules"), faults=KNOWN)
    assert not found.unexplained
    assert {(bug.id, bug.variant) for bug in found.faults} == {("multiplier-wrong", said)}


@pytest.mark.parametrize(("tap", "id"), [("scores", "attn-scale-wrong"), ("q_proj", None)])
def test_a_factor_of_scores_is_their_scale_and_one_of_other_values_is_no_number(tap, id):
    """By hand: 0.95 times what the port had, where that is dumped."""
    taps = port(QWEN, level="taps")
    tap = AT + tap
    before = [*taps][: [*taps].index(tap)]
    found = explained(QWEN, {key: taps[key] for key in before} | {tap: 0.95 * taps[tap]})
    assert [bug.id for bug in found.faults] == ([id] if id else [])
    assert [bug.variant for bug in found.faults] == (
        ["scores times 0.2124264 for 0.2236068"] if id else []
    )
