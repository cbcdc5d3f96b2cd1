"""Which module is packed how. By hand."""

import pytest

from lockstep.parity.quantizing import Rule, mixed, parse_packing, recipe_of
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.packed import Packing

DOWN = "model.layers.3.mlp.down_proj"


@pytest.mark.parametrize(
    "text, packing",
    [
        ("keep", None),
        ("6", Packing(6, 64, "affine")),
        ("8/32", Packing(8, 32, "affine")),
        ("mxfp4", Packing(4, 32, "mxfp4")),
        ("nvfp4", Packing(4, 16, "nvfp4")),
    ],
)
def test_words_for_a_packing(text, packing):
    assert parse_packing(text) == packing


@pytest.mark.parametrize(
    "text", ["", "0", "4/0", "7", "4/16", "4/", "four", "4/32/1", "99999999999", "-4"]
)
def test_other_words_are_refused(text):
    with pytest.raises(InputError):
        parse_packing(text)


@pytest.mark.parametrize(
    "bits, group, mode, said",
    [
        (0, None, "affine", "bits are 2, 3, 4, 5, 6 or 8"),
        (4, 0, "affine", "in groups of 32, 64 or 128"),
        (1, None, "affine", "bits are 2, 3, 4, 5, 6 or 8"),
        (4, 48, "affine", "in groups of 32, 64 or 128"),
        (8, None, "mxfp4", "has 4 bits in groups of 32, not 8 in 32"),
        (4, None, "int4", "is no mode of packing"),
    ],
)
def test_packings_that_mlx_has_not(bits, group, mode, said):
    with pytest.raises(InputError, match=said):
        recipe_of(bits, group, mode)


@pytest.mark.parametrize(
    "pattern, fits",
    [
        ("down_proj", True),
        ("mlp", True),
        ("layers.3", True),
        ("3.mlp", True),
        ("*_proj", True),
        ("model.layers.3.mlp.down_proj", True),
        ("proj", False),
        ("layers.33", False),
        ("self_attn", False),
    ],
)
def test_a_name_is_a_run_of_whole_parts(pattern, fits):
    assert Rule(pattern, None).fits(DOWN) is fits


def test_the_first_rule_decides_and_routers_are_fine():
    rules = [Rule("layers.3", parse_packing("8")), Rule("down_proj", parse_packing("2/32"))]
    recipe = recipe_of(3, 64, "affine", ["lm_head"], rules)
    assert recipe.packing((DOWN,), 4) == Packing(8, 64, "affine")
    assert recipe.packing((DOWN.replace("3", "2"),), 4) == Packing(2, 32, "affine")
    assert recipe.packing(("lm_head",), 4) is None
    assert recipe.packing(("model.embed_tokens",), 4) == Packing(3, 64, "affine")
    for router in ("model.layers.0.mlp.gate", "model.layers.0.router.proj"):
        assert recipe.packing((router,), 4) == Packing(8, 64, "affine")
    assert recipe.packing(("model.layers.0.mlp.gate_proj",), 4) == Packing(3, 64, "affine")


def test_what_is_kept_stays_dense_whatever_a_rule_says():
    recipe = recipe_of(4, 32, "affine", ["lm_head"], [Rule("*", parse_packing("6"))])
    assert recipe.packing(("lm_head",), 4) is None
    assert recipe.packing(("model.embed_tokens", "lm_head"), 4) is None  # tied: one table
    assert recipe.packing(("model.embed_tokens",), 4) == Packing(6, 64, "affine")


def test_mixed_widths_go_by_down_proj():
    with pytest.raises(InputError, match="needs a model with down_proj"):
        mixed("mixed_3_6", None).check(["transformer.h.0.mlp.c_proj"])


def test_mixed_widths():
    """Sixteen layers: the first two and the last two are wide, and each third one between."""
    recipe = mixed("mixed_3_6", None)
    values = {layer: f"model.layers.{layer}.self_attn.v_proj" for layer in range(16)}
    six = Packing(6, 64, "affine")
    wide = [layer for layer, name in values.items() if recipe.packing((name,), 16) == six]
    assert wide == [0, 1, 4, 7, 10, 13, 14, 15]
    assert recipe.packing(("model.layers.0.mlp.up_proj",), 16) == Packing(3, 64, "affine")
    assert recipe.packing(("lm_head",), 16) == Packing(6, 64, "affine")
