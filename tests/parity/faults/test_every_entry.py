"""What holds for every entry of the catalogue, on the checkpoints of the witnesses. By law."""

import re
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, hypotheses, rewritten
from lockstep.parity.explaining.steps.batch import padded, positions_of
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.loading import exchanged_by
from lockstep.parity.faults.numbers import NUMBERS
from lockstep.parity.graph import Evaluator, Graph, record
from lockstep.parity.planting.in_model import changed, reader
from lockstep.reference import ops
from lockstep.reference.model import Model
from lockstep.reference.precision import dtype_named
from tests.sampled import sampled

ROOT = Path(__file__).parents[3]
WITNESSES = ROOT / "tests/witnesses"
PADS = 5  # tokens that fill up the second row of a batch, where a name ends with #5
STEPS = 3  # of the tokens, fed in steps, where a name ends with +3, or at once, with ~3
MODELS = (
    "gemma4/dense", "gemma4/effective", "gemma4/sparse", "gpt2/original", "gpt2/packed",
    "gpt2/variant", "llama/biased_llama3", "llama/llama_dynamic", "llama/llama_longrope",
    "llama/llama_longrope@10", "llama/mistral_window", "llama/qwen2_yarn",
    "models/affine_mixed", "models/biased_float16",
    "models/minifloats_mixed", "models/sliding_bfloat16", "qwen3_moe/fused", "qwen3_moe/packed",
    "qwen3_moe/separate", "gguf/qwen3_mixed.gguf", "gguf/llama_stretched.gguf",
    *(f"adapters/{path.name}" for path in sorted((WITNESSES / "adapters").iterdir())),
    *(f"{name}+{STEPS}" for name in ("gemma4/effective", "gpt2/variant", "llama/mistral_window",
                                     "models/untied_float32", "llama/llama_dynamic",
                                     "llama/llama_longrope@18")),
    f"llama/llama_dynamic~{STEPS}",
    *(f"{name}+{STEPS}#{PADS}" for name in ("gpt2/variant", "models/untied_float32",
                                            "llama/llama_dynamic", "llama/llama_longrope@18")),
)  # fmt: skip
LENGTH = 40  # longer than every window and original length of these models
MIXED = ("gemma4/sparse", "gemma4/effective", "gpt2/packed", "qwen3_moe/packed")
FEW = 6  # calls of a variant that are looked at
VARIANTS = {
    (fault.id, name): rewrite for fault in catalogue() for name, rewrite in fault.variants.items()
}

# What changes no bit in these models, and why.
UNSEEN: dict[tuple[str, str], str] = {
    **dict.fromkeys(
        (("moe-expert-order", ""), ("moe-expert-order", "the last matrices alone")),
        "no model here has more than ten experts",
    ),
    ("moe-topk-partition-kth", "the next best for the last but 3"): (
        "no model here chooses four experts"
    ),
    ("norm-parallel-merge-wrong", "of 32 lanes, counts divided as integers"): (
        "no sum of squares here overflows float32"
    ),
    ("layers-swapped", "sorted as text"): "no model here has more than ten layers",
    ("tied-head-mishandled", "the head that the file has, though the config ties it"): (
        "no witness stores a head that it ties"
    ),
    **{
        ("layers-swapped", f"{exchanged_by(2, 2)}{more}"): "no model here has five layers"
        for more in ("", ", with its adapter")
    },
    ("kv-sharing-ignored", "keys and values, by weights that nothing uses"): (
        "no model here has such weights in the shapes of others"
    ),
    ("kv-sharing-ignored", "keys and values of the first layer of its kind"): (
        "of no kind here two layers have keys that another one shares"
    ),
    ("mask-sentinel-too-small", "lowered by 10000"): "no score here comes near 10000",
    ("lm-head-quantised-too-low", "4 bits in groups of 128"): "no head here is that wide",
    **{
        ("quant-scales-in-half", f"{half}{part}"): "scales are bfloat16 here, as small as float16's"
        for half in ("bfloat16", "float16")
        for part in ("", ", scales alone")
    },
    **{
        ("embedding-ids-narrowed", kind): "no vocabulary here is that large"
        for kind in ("uint16", "int16")
    },
    ("rope-global-linear-scale-missing", ""): "no model here stretches its positions linearly",
    ("rope-linear-scale-inverted", ""): "no model here stretches its positions linearly",
    ("rope-yarn-scaling-missing", "bounds rounded, or not"): "the bounds here are whole anyway",
    ("rope-yarn-attn-factor", "always 0.1 ln(s) + 1"): "the one YaRN here has that factor",
    ("rope-yarn-attn-factor", "mscale counts alone"): "the one YaRN here has no mscale",
    ("rope-longrope-mscale", "by both lengths"): "the config of the one LongRoPE names no factor",
    **{
        ("kv-int8-noise", name): "no head here is that wide"
        for name in ("8 bits in blocks of 32", "8 bits in groups of 64", "4 bits in groups of 64")
    },
    **dict.fromkeys(
        (
            ("kv-ring-overwritten", ""),
            ("mask-swa-missing-in-decode", "counted from the first token of a chunk"),
            ("mask-causal-missing", "in all these, and no window"),
        ),
        "no model with a window is fed several tokens in a step here",
    ),
    ("kv-ring-sliced-as-flat", "a chunk takes the slots as they lie for the last tokens"): (
        "no model with a window is fed several tokens behind a step here"
    ),
    **dict.fromkeys(
        (
            ("rope-pos-frozen-on-decode", "a chunk counts as one token"),
            ("rope-pos-frozen-on-decode", "a chunk counts as one token, in the mask too"),
        ),
        "nothing is fed behind a chunk here",
    ),
    ("kv-chunk-cache-trims-buffer", "a ring read to its end before it is full"): (
        "prompts here are longer than windows"
    ),
    **{
        ("gelu-from-a-table", f"in experts, beside {size} to a scale"): (
            "no model here has packed experts with GELU"
        )
        for size in (32, 256)
    },
    **{
        ("per-layer-input-misaligned", f"of the first {size} tokens"): "the prompt is shorter"
        for size in (64, 128, 256, 512, 1024, 2048)
    },
}


class Case(NamedTuple):
    graph: Graph
    read: Any


@cache
def case(name: str) -> Case:
    name, _, pads = name.partition("#")
    name, _, chunk = name.partition("~")
    name, _, later = name.partition("+")
    folder, _, length = name.partition("@")
    model = model_of(WITNESSES / folder)
    length = int(length or LENGTH)
    rows = 2 if pads else 1
    tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, (rows, length))
    steps = (length - int(chunk),) if chunk else tuple(range(length - int(later or 0), length))
    if not pads:
        return Case(record(model, tokens, steps=steps), reader(model))
    filling = np.arange(length) < [[0], [int(pads)]]
    graph = record(model, tokens, positions_of(filling), steps=steps)
    return Case(padded(graph, filling), reader(model))


def model_of(path: Path) -> Model:
    """Load a checkpoint, or what an adapter says it belongs to, with the adapter."""
    if path.parent.name != "adapters":
        return reference.load(path)
    with np.load(path / "expected.npz") as kept:
        return reference.load(ROOT / str(kept["base"]), path)


@cache
def run_of(name: str, dtype: str = "float32") -> Evaluator:
    return Evaluator(case(name).graph, ops, dtype_named(dtype), {}, case(name).read)


def seen(rewrite: Any) -> bool:
    """Say whether a bug changes something: the logits, or else what a changed call itself returns.

    Each is asked for by itself, so that processes that share the tests share the work.
    """
    looks = (("float32", logits), ("float32", own), ("bfloat16", own))
    return any(shows(run_of(name, dtype), rewrite, of) for dtype, of in looks for name in MODELS)


def logits(run: Evaluator, calls: dict[int, Any]) -> list[int]:
    return [run.graph.taps["logits"]]


def own(run: Evaluator, calls: dict[int, Any]) -> list[int]:
    return sorted(calls)[:FEW]


def differs(run: Evaluator, number: int, calls: dict[int, Any]) -> bool:
    wrong, right = run.target(number, calls), run.target(number)
    return not np.array_equal(wrong.astype(float), right.astype(float), equal_nan=True)


def shows(run: Evaluator, rewrite: Any, of: Any) -> bool:
    calls = changed(rewrite, run.graph)
    with np.errstate(all="ignore"):
        return bool(calls) and any(differs(run, number, calls) for number in of(run, calls))


@sampled(97, "moe-router-precision logits in bfloat16")
@pytest.mark.parametrize("key", VARIANTS, ids=lambda key: " ".join(filter(None, key)))
def test_a_variant_changes_what_some_model_computes(key):
    assert seen(VARIANTS[key]) != (key in UNSEEN)


def test_what_is_unseen_is_in_the_catalogue():
    assert set(UNSEEN) <= set(VARIANTS)


@sampled(9, "qwen3_moe/fused")
@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_value_has_the_shape_and_the_dtype_of_the_right_one(name):
    """Each call that a variant changes, by itself, and the value that it gives."""
    run, odd = run_of(name), []
    for hypothesis in hypotheses(catalogue(), run.graph):
        for number in sorted(hypothesis.calls)[:FEW]:
            value = alone(run, number, [hypothesis])
            assert value is not None
            if value.shape != run.graph.shapes[number] or value.dtype != run.dtype:
                odd.append((hypothesis.id, hypothesis.variant, value.shape, value.dtype))
    assert not odd


def alone(run: Evaluator, number: int, some: list[Hypothesis]) -> np.ndarray | None:
    """Return the value of one call with some bugs in it; None if they contradict each other."""
    calls = rewritten([Atom(one, frozenset([number])) for one in some], run.graph)
    if calls is None:
        return None
    with np.errstate(all="ignore"):
        return run.target(number, calls)


@sampled(1, "gemma4/sparse")
@pytest.mark.parametrize("name", MIXED)
def test_two_bugs_in_one_call_compose_or_conflict(name):
    """Nothing else is raised, and the value keeps its shape."""
    run, pairs = run_of(name), 0
    for one, other in combinations(hypotheses(catalogue(), run.graph), 2):
        shared = one.calls & other.calls
        if shared:
            value = alone(run, min(shared), [one, other])
            assert value is None or value.shape == run.graph.shapes[min(shared)], (one, other)
            pairs += value is not None
    assert pairs > 100


def test_every_entry_says_what_a_porter_needs():
    for fault in catalogue():
        told = (fault.id, fault.wrong, fault.right, fault.symptom, fault.where, fault.fix)
        assert all(text and text == text.strip() for text in told), fault.id
        assert fault.variants or fault.id in NUMBERS
        assert fault.wrong != fault.right
        assert re.fullmatch(r"[a-z0-9_]+(-[a-z0-9]+)+", fault.id)


def test_ids_are_unique():
    ids = [fault.id for fault in catalogue()]
    assert len(ids) == len(set(ids))
