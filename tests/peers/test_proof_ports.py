"""The ports of the proof benchmark: that a planted bug is there, alone, and is what it says.

By law and by hand: each effect is computed here from what the catalogue says of its class. The
unpatched ports are held against the reference, which they must not be made of.
"""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep import reference
from tests.proof import builds, combos, ports, seams, selfcheck
from tests.proof.norms import norm_seam
from tests.proof.registry import FAMILIES, Bug, applicable, every_bug, named
from tests.proof.routing import routing
from tests.witnesses import build

PROOF = Path(builds.__file__).parent
FORBIDDEN = ("parity.faults", "parity.explain", "reference.ops", "fast.ops", "reference.models")
FORBIDDEN += ("proof.run",)  # what runs the benchmark knows both sides
NEAR = 2e-5  # of the logits' own deviation, in float32
SMALL = {"norm-eps-outside-sqrt", "moe-renorm-epsilon"}  # hardly above rounding
SPARSE = 4  # one bug in so many is tried of those that a build can have
SAMPLE = ("llama_biased", "mistral", "qwen3_moe_raw", "gpt2", "gemma4_26b", "gemma4_e2b")


@pytest.fixture(scope="module")
def made(tmp_path_factory, run_seed):
    """Return a build's folder, made once from the seed of this run."""
    root, done = tmp_path_factory.mktemp("builds"), {}

    def make(name: str) -> Path:
        if name not in done:
            done[name] = builds.make(name, root / name, seed=run_seed % 10_000)
        return done[name]

    return make


def dumped(folder: Path, *names: str, granularity: str = "modules", **options) -> dict:
    port = ports.load(folder, [named(name) for name in names], **options)
    return ports.dump(port, builds.tokens(0, folder), granularity)


def test_nothing_of_the_catalogue_or_the_oracle_is_imported():
    """By law: the ports are an independent witness."""
    read = [path for path in PROOF.rglob("*.py") if path.parent.name != "run"]
    assert len(read) > 15
    for path in read:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in getattr(node, "names", [])]
            home = getattr(node, "module", None) or ""
            for name in [home, *(f"{home}.{one}" for one in names), *names]:
                assert not any(one in str(name) for one in FORBIDDEN), f"{path.name}: {name}"


def test_sixty_classes_at_least_and_every_family_has_some():
    families = {one.plant.__module__.rpartition(".")[2] for one in every_bug()}
    assert families == set(FAMILIES)
    assert len({one.id for one in every_bug()}) >= 60
    assert len({one.name for one in every_bug()}) == len(every_bug())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", builds.BUILDS)
def test_the_unpatched_port_is_the_reference(name, attention, made):
    """By witness: two implementations of one model, in float32."""
    folder = made(name)
    found = dumped(folder, granularity="logits", attention=attention)["logits"]
    right = np.asarray(reference.load(folder).forward(builds.tokens(0, folder)))
    assert combos.distance(found, right) <= NEAR


@pytest.mark.parametrize("name", builds.ADAPTERS)
def test_the_unpatched_adapter_is_the_reference(name, made, tmp_path):
    adapter = builds.adapter(name, made("qwen3"), tmp_path / name, seed=1)
    found = dumped(made("qwen3"), granularity="logits", adapter=adapter)["logits"]
    model = reference.load(made("qwen3"), adapter)
    right = np.asarray(model.forward(builds.tokens(0, made("qwen3"))))
    assert combos.distance(found, right) <= NEAR


@pytest.mark.parametrize("name", SAMPLE)
def test_every_bug_shows_in_float32(name, run_seed, tmp_path):
    """By law: what is said to exist in a port moves something that a dump holds."""
    options = {"seed": run_seed % 10_000, "dtype": "float32", "attention": "sdpa"}
    drawn = np.random.default_rng(run_seed).permutation(np.array(every_bug(), dtype=object))
    found = selfcheck.effects(name, tmp_path, bugs=drawn, every=SPARSE, **options)
    assert len(found) > 8
    silent = {one.bug.id for one in found if not (one.seen or one.bug.benign)}
    assert silent <= SMALL
    assert not [one.bug.name for one in found if one.bug.benign and one.floors > 10]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SAMPLE)
def test_an_open_seam_changes_no_bit(name, dtype, attention, made):
    """By law: what a bug does not change is what transformers computes."""
    ids, options = builds.tokens(0, made(name)), {"dtype": dtype, "attention": attention}
    right = ports.dump(ports.load(made(name), **options), ids)
    port = ports.load(made(name), **options)
    for part in port.attentions():
        seams.attention_seam(part)
    for mlp in port.dense_mlps():
        seams.opened(mlp)
    for router in port.routers():
        routing(router)
    for norm in port.norms() if name != "gpt2" else []:
        norm_seam(norm)
    found = ports.dump(port, ids)
    assert [tap for tap in right if not np.array_equal(found[tap], right[tap])] == []


def test_a_missing_embedding_scale_is_the_root_of_the_width(made):
    """By hand: the embedding is smaller by sqrt(d), to the bit of one product."""
    folder = made("gemma4_31b")
    right, wrong = dumped(folder), dumped(folder, "embed-scale-missing")
    width = right["model.embed_tokens"].shape[-1]
    root = np.float32(width**0.5)
    assert np.array_equal(wrong["model.embed_tokens"] * root, right["model.embed_tokens"])
    twice = dumped(folder, "embed-scale-twice")
    assert np.array_equal(twice["model.embed_tokens"], right["model.embed_tokens"] * root)


def test_a_missing_softcap_leaves_the_order(made):
    """By law: the cap is monotonic, so every argmax stays; logits go past it."""
    folder = made("gemma4_e2b")
    right, wrong = dumped(folder)["logits"], dumped(folder, "final-softcap-missing")["logits"]
    assert np.array_equal(right.argmax(-1), wrong.argmax(-1))
    cap = np.float32(3.0)
    assert np.allclose(cap * np.tanh(wrong / cap), right, atol=1e-6)
    assert np.abs(wrong).max() > 3 >= np.abs(right).max()


def test_a_window_off_by_one_shows_where_the_window_ends(made):
    """By law: rows before the first that is cut are the same to the bit."""
    folder = made("mistral")
    right = dumped(folder)["model.layers.0"]
    for variant, first in (("one more", 9), ("one less", 8)):
        wrong = dumped(folder, f"mask-swa-off-by-one ({variant})")["model.layers.0"]
        differs = np.abs(wrong - right).max((0, 2)) > 1e-5
        assert not differs[:first].any() and differs[first:].all()


def test_rope_bugs_leave_the_first_token(made):
    """By law: position 0 is not turned, whatever the pairs and frequencies are."""
    folder = made("qwen3")
    right = dumped(folder)["logits"]
    for name in ("rope-pairing-swapped", "rope-sign-flipped", "rope-theta-default"):
        wrong = dumped(folder, name)["logits"]
        assert np.array_equal(wrong[:, 0], right[:, 0])
        assert combos.distance(wrong[:, 1:], right[:, 1:]) > 1e-3


def test_tiled_heads_need_groups(made):
    """By hand: query head h reads key head h mod n, under both implementations of attention."""
    folder = made("llama")
    both = [
        dumped(folder, "gqa-tile-vs-repeat", attention=attention)["model.layers.0.self_attn.o_proj"]
        for attention in ("eager", "sdpa")
    ]
    assert combos.distance(both[0], both[1]) < 1e-5
    port = ports.load(folder)
    heads, groups = port.config.num_attention_heads, port.config.num_key_value_heads
    attention = port.blocks[0].self_attn
    order = torch.arange(heads).reshape(groups, -1).T.flatten()  # tiled head h is group h mod n
    with torch.no_grad():
        query = attention.q_proj.weight.unflatten(0, (heads, -1))
        attention.q_proj.weight.copy_(query[order].flatten(0, 1))
        out = attention.o_proj.weight.unflatten(1, (heads, -1))
        attention.o_proj.weight.copy_(out[:, order].flatten(1, 2))
    by_weights = ports.dump(port, builds.tokens(0, folder))["model.layers.0.self_attn.o_proj"]
    assert combos.distance(by_weights, both[0]) < 1e-5


def test_experts_by_text_leave_the_router(made):
    """By law: the router of the first sparse layer does not see the order of its experts."""
    folder = made("qwen3_moe")
    right, wrong = dumped(folder), dumped(folder, "moe-expert-order")
    assert np.array_equal(wrong["model.layers.1.mlp.gate"], right["model.layers.1.mlp.gate"])
    assert (
        combos.distance(wrong["model.layers.1.mlp.experts"], right["model.layers.1.mlp.experts"])
        > 0.1
    )


def test_an_adapter_scale_divided_again_is_a_rank_too_small(made, tmp_path):
    """By hand: what the first adapted projection adds is smaller by the rank."""
    adapter = builds.adapter("lora", made("qwen3"), tmp_path / "lora", seed=2)
    name = "model.layers.0.self_attn.q_proj"
    right = dumped(made("qwen3"), adapter=adapter)
    wrong = dumped(made("qwen3"), "lora-scale-divided-again", adapter=adapter)
    plain = right[f"{name}.base_layer"]
    assert np.allclose(4 * (wrong[name] - plain), right[name] - plain, atol=1e-4)


def test_codes_are_unpacked_as_mlx_does(made):
    """By witness: the steps that packed bugs change are MLX's when nothing is wrong."""
    folder = made("qwen3_packed")
    port, truth = ports.load(folder), build.truth(folder)
    for name, value in truth.named_parameters():
        assert torch.equal(port.model.get_parameter(name), value), name


def mixed() -> list[Bug]:
    """Return bugs that meet in the same modules, of the seven of a real port and more."""
    names = (
        "embed-scale-missing", "act-silu-vs-gelu (everywhere)",
        "rope-proportional-missing (plain, all turn)",
        "attn-scale-should-be-one (every layer)", "moe-selects-lowest", "final-softcap-missing",
        "layer-scalar-missing (every layer)", "gqa-tile-vs-repeat (every layer)",
        "qk-norm-rope-order", "mask-swa-off-by-one (one more)",
    )  # fmt: skip
    return [named(name) for name in names]


def test_ten_bugs_stand_together_and_none_hides_another(made):
    folder = made("gemma4_26b")
    assert combos.hidden(folder, mixed(), builds.tokens(0, folder)) == []


def test_the_order_in_which_bugs_are_named_does_not_matter(made):
    folder, ids = made("gemma4_26b"), builds.tokens(0, made("gemma4_26b"))
    forth, back = (ports.dump(ports.load(folder, bugs), ids) for bugs in (mixed(), mixed()[::-1]))
    assert forth.keys() == back.keys()
    assert all(np.array_equal(forth[name], back[name], equal_nan=True) for name in forth)


@pytest.mark.parametrize("name", SAMPLE)
def test_drawn_combinations_run(name, made, seed_for):
    """By law: bugs of different sites can be planted together, in every dtype."""
    rng = np.random.default_rng(seed_for("combination", name))
    for dtype in ("float32", "bfloat16"):
        subject = ports.subject(made(name), dtype=dtype)
        bugs = combos.draw(subject, 7, rng)
        assert len(combos.sites(bugs)) == 7
        port = ports.load(made(name), bugs, dtype=dtype, attention="sdpa")
        ids = torch.as_tensor(builds.tokens(0, made(name)))
        with torch.no_grad():  # not captured: if all layers give nought, that is refused
            assert port.outer(ids).logits.shape[:2] == ids.shape


@pytest.mark.parametrize("other", ["rope-pairing-swapped (full layers)", "branch-not-added"])
def test_a_layer_is_left_out_when_all_else_is_planted(other, made):
    """By law: a bug of the layers of one kind asks for every layer's kind."""
    port = ports.load(made("gemma4_e2b"), [named("layer-left-out"), named(other)])
    assert len(port.blocks) == port.config.num_hidden_layers - 1


def test_a_patch_stays_in_its_own_model(made):
    """By law: a port loaded before, and one loaded after, are as right as if nothing had been."""
    for name in ("gemma4_26b", "qwen3", "gpt2"):
        folder, ids = made(name), builds.tokens(0, made(name))
        before = ports.load(folder)
        right = ports.dump(before, ids)
        for one in applicable(ports.subject(folder))[::SPARSE]:
            ports.dump(ports.load(folder, [one]), ids, "logits")
        for port in (before, ports.load(folder)):
            again = ports.dump(port, ids)
            assert all(np.array_equal(again[tap], right[tap]) for tap in right)


def test_granularities_are_parts_of_one_dump(made):
    folder = made("gemma4_31b")
    fine, layers, logits = (dumped(folder, granularity=one) for one in ports.GRANULARITIES)
    assert set(layers) == {"model.embed_tokens", "model.norm", "lm_head", "logits"} | {
        f"model.layers.{layer}" for layer in range(5)
    }
    assert set(logits) == {"logits"} and set(layers) < set(fine)
    assert all(np.array_equal(layers[name], fine[name]) for name in layers)


def test_a_bug_that_does_not_exist_there_is_refused(made):
    with pytest.raises(ValueError, match="embed-scale-missing does not exist"):
        ports.load(made("qwen3"), [named("embed-scale-missing")])
