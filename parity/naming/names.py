"""Which tap a dumped name means: Hugging Face, mlx-lm, llama.cpp, and wrappers around them."""

import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

from lockstep.parity.naming.llama_cpp import NUMBER, tap_of_llama_cpp

# What stands before a module's path in a dump, and what it becomes: torch.compile, DataParallel,
# PEFT, a module of one's own around the model, a multimodal model around the language model.
WRAPPERS = (
    ("_orig_mod.", ""),
    ("module.", ""),
    ("base_model.model.", ""),
    ("model.language_model.", "model."),
    ("language_model.", ""),
    ("model.model.", "model."),
    ("model.lm_head", "lm_head"),
    ("model.logits", "logits"),
    *((f"model.{part}", f"transformer.{part}") for part in ("wte", "wpe", "h.", "ln_f")),  # mlx-lm
)
RETURNED = ".__call__"  # behind a module's path, in Flax
# Hooks on the model without its head.
BARE = ("embed_tokens", "norm", "embed_tokens_per_layer", "layers.")
BARE_GPT2 = re.compile(r"wte|wpe|drop|ln_f|h\.[0-9].*", re.DOTALL)

# A module that only hands on what its last part returns.
LAST_PARTS = {"self_attn": "self_attn.o_proj", "mlp": "mlp.down_proj"}
LAST_PART = re.compile(rf"(model\.layers\.{NUMBER})\.(self_attn|mlp)")
# What only a layer with a router in its MLP has; it may be dumped at any step.
ROUTED = re.compile(
    rf"(?:step\.{NUMBER}/)?(model\.layers\.{NUMBER})\.mlp\.(?:gate|routing|(?:experts|switch_mlp)(?:\..*)?)"
)
SHARED = re.compile(
    rf"(?:step\.{NUMBER}/)?(model\.layers\.{NUMBER})\.mlp\.shared_experts?(?:[._].*)?"
)
LAST_PART_GPT2 = re.compile(rf"(transformer\.h\.{NUMBER}\.(?:attn|mlp))(\.(?:resid_)?dropout)?")
LAST_NORMS = {"model": "model.norm", "transformer": "transformer.ln_f"}

STEP = re.compile(rf"step\.({NUMBER})/")
TAP = re.compile(
    r"model\.embed_tokens(_per_layer)?|model\.norm|lm_head|logits|"
    r"model\.per_layer_(model_projection|projection_norm|inputs)|"
    rf"model\.layers\.{NUMBER}(\.(input_layernorm|post_attention_layernorm|residual|"
    r"self_attn\.([qkvo]_proj|[qkv]_norm|[qk]_rope|scores|probs|context|cached_(keys|values))|"
    r"mlp\.(gate_proj|up_proj|down_proj|act_fn|gate|routing|experts)|"
    r"pre_feedforward_layernorm(_2)?|post_feedforward_layernorm(_[12])?|experts|"
    r"router\.(norm|proj|routing)|act_fn|per_layer_(input_gate|projection)|"
    r"post_per_layer_input_norm))?|"
    r"transformer\.(wte|wpe|drop|ln_f)|"
    rf"transformer\.h\.{NUMBER}(\.(ln_1|ln_2|residual|"
    r"attn\.(c_attn|c_proj|scores|probs|context|cached_(keys|values))|mlp\.(c_fc|act|c_proj)))?"
)


CACHED = (".cached_keys", ".cached_values")  # what a layer's cache holds after a pass


def sparse_layers(taps: Iterable[str]) -> frozenset[str]:
    """Return the layers whose MLP is made of experts, by what else was dumped of it.

    Where there are shared experts, the path of the MLP: it is no tap then, but more than each part.
    """
    taps = [*taps]
    shared = {found[1] for found in map(SHARED.fullmatch, taps) if found}
    routed = {found[1] for found in map(ROUTED.fullmatch, taps) if found}
    return frozenset(routed - shared | {f"{layer}.mlp" for layer in shared})


def tap_named(name: str, *, sparse: Collection[str] = (), family: str = "llama") -> str:
    """Return the tap that a dumped name means; a name that means none is returned unwrapped.

    A step's prefix is kept, that of step 0 dropped. mlx-lm's modules have the paths of Hugging
    Face; `l_out-3` is llama.cpp's name for `model.layers.3`. Layers are counted in ASCII digits.
    `family` says whose table of llama.cpp's names holds.
    """
    step, path = parted(unwrapped(name))
    if (tap := tap_of_llama_cpp(path, family)) is not None:
        return step + tap
    found = LAST_PART.fullmatch(path)
    if found and path in sparse:
        return step + path
    if found and found[2] == "mlp" and found[1] in sparse:
        return f"{step}{path}.experts"
    if found:
        return f"{step}{found[1]}.{LAST_PARTS[found[2]]}"
    found = LAST_PART_GPT2.fullmatch(path)
    if found:
        return f"{step}{found[1]}.c_proj"
    return step + LAST_NORMS.get(path, path)


def unwrapped(name: str) -> str:
    """Return a name as the causal language model itself would have it."""
    step, path = parted(name)
    path, changed = path.removesuffix(RETURNED), True
    while changed:
        changed = False
        for wrapper, instead in WRAPPERS:
            if path.startswith(wrapper):
                path, changed = instead + path.removeprefix(wrapper), True
    bare = path in BARE or path.startswith(BARE[-1])
    if BARE_GPT2.fullmatch(path):
        return f"{step}transformer.{path}"
    return step + ("model." if bare else "") + path


def parted(name: str) -> tuple[str, str]:
    """Split `step.2/model.norm` into the step's prefix and the rest."""
    step = STEP.match(name)
    if step is None:
        return "", name
    return "" if step[1] == "0" else step.group(), name[step.end() :]


def step_of(name: str) -> int:
    """Return the number of the step that a tap belongs to, 0 for the prefill."""
    step = STEP.match(name)
    return int(step[1]) if step else 0


def is_tap(name: str) -> bool:
    """Say whether a name is that of a tap, of any layer and any step."""
    return TAP.fullmatch(parted(name)[1]) is not None


def matched(name: str, globs: Sequence[str]) -> bool:
    """Say whether one of the globs chooses a name."""
    return any(fnmatchcase(name, glob) for glob in globs)
