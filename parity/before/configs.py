"""A port's config.json against the checkpoint's: what was dropped, and what has another value."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.parity.before.canonical import KINDS, as_json, canonical, equal, same
from lockstep.parity.before.config_keys import ANY_VALUE, CLOSER, KEYS, NEEDED, Key
from lockstep.reference.checkpoint.architectures import architecture_of
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.config import CONFIG, CONFIG_LIMITS
from lockstep.reference.checkpoint.config_fields import Fields
from lockstep.reference.checkpoint.config_keys import IGNORED
from lockstep.reference.checkpoint.errors import show
from lockstep.reference.checkpoint.strict_json import read_json_object

DROPPED, OTHER_VALUE, OTHER_TYPE = "dropped", "other value", "other type"
# Names and sizes of no consequence for the numbers of a prompt that fits.
SILENT = {"architectures", "model_type", "eos_token_id", "dtype", "torch_dtype", "rope_scaling",
          "max_position_embeddings", "vision_config", "audio_config", "image_token_id",
          "vocab_size_per_layer_input", "rope_type[sliding_attention]"}  # fmt: skip
WINDOW = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
BY_LENGTH = ("dynamic", "longrope")
UNKNOWN = "an unknown key: nothing here says what it does"


@dataclass(frozen=True)
class ConfigFinding:
    """One key that the port has otherwise. `theirs` and `ours` are None where it is absent.

    `taken` is what is usually taken where a key is absent. `fault` is an id of the catalogue, or
    None where no class fits.
    """

    key: str
    kind: str
    theirs: Any
    ours: Any
    taken: Any
    effect: str
    fault: str | None
    fix: str

    def to_json(self) -> dict[str, Any]:
        return {name: as_json(value) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        named = f" [{self.fault}]" if self.fault else ""
        return f"{self.key}: {self.kind}, {self.effect}{named}. {self.fix}"


def compare_configs(checkpoint: Checkpoint, path: str | Path) -> list[ConfigFinding]:
    """Return what a port's config.json has otherwise than the checkpoint, in the order of ours.

    Sections and spellings that mean the same are the same. A key that is missing counts only if
    what engines take instead is not the checkpoint's value.
    Of a folder it is the config.json in it.
    Raises: InputError if the file is no JSON object.
    """
    file = Path(path) / CONFIG if Path(path).is_dir() else Path(path)
    raw = read_json_object(file, subject="config", limits=CONFIG_LIMITS)
    model, ours, silent = own(checkpoint)
    return list(differences(canonical(raw), ours, model, silent))


def own(checkpoint: Checkpoint) -> tuple[str, dict[str, Any], set[str]]:
    """Return the architecture, the checkpoint's own keys, and those that change no number."""
    silent = SILENT | set(IGNORED)
    file = checkpoint.path / CONFIG
    if not file.is_file():  # a GGUF file says the same in other words
        return checkpoint.architecture, canonical(asdict(checkpoint.config)), silent
    raw = read_json_object(file, subject="config", limits=CONFIG_LIMITS)
    silent |= set(architecture_of(Fields(raw, file)).ignored)
    ours = canonical(raw)
    if ours.get("rope_type") in BY_LENGTH:
        silent -= {"max_position_embeddings"}
    return checkpoint.architecture, ours, silent


def differences(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], model: str, silent: set[str]
) -> Iterator[ConfigFinding]:
    known = {**ours, **{key: None for key in theirs if key in KEYS and key not in ours}}
    silent = silent | ({*WINDOW} if not any(map(slides, (theirs, ours))) else set())
    for key in known:
        if key in silent:
            continue
        mine, yours = (taken(side, key, model) for side in (ours, theirs))
        if yours is NEEDED and mine is NEEDED:
            continue
        if not equal(mine, yours) and not both_off(mine, yours):
            yield finding(key, theirs, ours, model)


def slides(config: Mapping[str, Any]) -> bool:
    """Tell whether some layer sees a window, by `layer_types` or by what Qwen and Mistral say."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list | tuple):
        return KINDS[1] in kinds and bool(config.get("sliding_window"))
    mistral = config.get("model_type") == "mistral" and "sliding_window" in config
    used = config.get("use_sliding_window", mistral or "max_window_layers" not in config)
    return bool(used and config.get("sliding_window"))


def taken(config: Mapping[str, Any], key: str, model: str) -> Any:
    """Return the value that counts: what is said, or what engines take where nothing is."""
    said = config.get(key)
    if said is not None:
        return said
    base = key.partition("[")[0]
    if key.endswith(tuple(f"[{kind}]" for kind in KINDS)) and config.get(base) is not None:
        return config[base]  # one value for layers of every kind
    if key in DERIVED:
        return DERIVED[key](config)
    default = KEYS[key].default_for(model) if key in KEYS else None
    if key == "layer_types":
        return kinds_by_depth(config)
    return default


def quotient(config: Mapping[str, Any]) -> Any:
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if type(width) is int and type(heads) is int and heads:
        return width // heads
    return NEEDED


def inner_width(config: Mapping[str, Any]) -> Any:
    width = config.get("hidden_size")
    return 4 * width if type(width) is int and config.get("model_type") == "gpt2" else NEEDED


# What is worked out from other keys where it is absent.
DERIVED = {
    "head_dim": quotient,
    "intermediate_size": inner_width,
    "num_key_value_heads": lambda config: config.get("num_attention_heads", NEEDED),
    "global_head_dim": lambda config: config.get("head_dim") or quotient(config),
    "num_global_key_value_heads": lambda config: config.get("num_key_value_heads"),
}


def kinds_by_depth(config: Mapping[str, Any]) -> Any:
    """Return the kinds of the layers where none are listed: by depth in Qwen's way, else full."""
    layers = config.get("num_hidden_layers")
    if type(layers) is not int or not 0 < layers <= 10_000:
        return None
    window, first = config.get("sliding_window"), config.get("max_window_layers")
    if not config.get("use_sliding_window") or not window or type(first) is not int:
        return [KINDS[0]] * layers
    return [KINDS[layer >= first] for layer in range(layers)]


def both_off(mine: Any, yours: Any) -> bool:
    off = (None, False, 0)
    return any(mine is one for one in off) and any(yours is one for one in off)


def finding(
    key: str, theirs: Mapping[str, Any], ours: Mapping[str, Any], model: str
) -> ConfigFinding:
    mine, yours = (taken(side, key, model) for side in (ours, theirs))
    known = KEYS.get(key, Key(None, UNKNOWN))
    if key == "quantization":
        known = Key(None, "how the weights are packed")
    absent = theirs.get(key) is None
    kind = DROPPED if absent else OTHER_VALUE if alike(mine, yours) else OTHER_TYPE
    fault = None if kind == OTHER_TYPE else fault_of(key, known, theirs, mine, yours, model)
    said = show(as_json(mine), 60) if mine is not NEEDED else "what the checkpoint has"
    usual = as_json(None if yours is NEEDED else yours)
    tail = f"; without it {show(usual, 60)} is taken" if absent and usual is not None else ""
    fix = f"set {key} to {said}{tail}"
    given = usual if absent else None
    return ConfigFinding(key, kind, theirs.get(key), ours.get(key), given, known.effect, fault, fix)


def fault_of(
    key: str, known: Key, theirs: Mapping[str, Any], mine: Any, yours: Any, model: str
) -> str | None:
    """Return the class that a wrong value enacts, None if the value is merely another one."""
    if key == "quantization":
        return quantization_fault(mine, yours)
    if key == "layer_types":
        return kinds_fault(mine, yours)
    if key == "sliding_window" and type(mine) is int and type(yours) is int:
        return "mask-swa-off-by-one" if yours == mine + 1 else None
    if closer := CLOSER.get((key, as_key(mine), as_key(yours))):
        return closer
    if key.startswith("rope_theta["):
        both = [taken(theirs, f"rope_theta[{kind}]", model) for kind in KINDS]
        return known.fault if equal(*both) else None
    usual = taken({**theirs, key: None}, key, model)
    return (
        known.fault if key in ANY_VALUE or isinstance(mine, bool) or equal(usual, yours) else None
    )


def kinds_fault(mine: Any, yours: Any) -> str | None:
    """Name one kind for all layers, or each layer the other kind."""
    if not isinstance(yours, list | tuple) or len(yours) != len(mine or ()):
        return None
    if len(set(yours)) == 1:
        return "mask-layer-types-ignored"
    flipped = all(one != other for one, other in zip(mine, yours, strict=True))
    return "mask-swa-parity-flipped" if flipped else None


def alike(mine: Any, yours: Any) -> bool:
    """Tell whether two values are of one kind; whatever stands beside null is not of another."""
    numbers = (int, float)
    if mine is None or yours is None or (type(mine) in numbers and type(yours) in numbers):
        return True
    return type(as_json(mine)) is type(as_json(yours))


def as_key(value: Any) -> Any:
    return same(value) if isinstance(value, str | bool) else None


def quantization_fault(mine: Any, yours: Any) -> str | None:
    """Name the dropping of what single modules have otherwise; nothing else has a class."""
    if not isinstance(mine, Mapping) or not isinstance(yours, Mapping):
        return None
    plain = {key: one for key, one in mine.items() if not isinstance(one, Mapping | bool)}
    return "quant-bits-global" if plain == dict(yours) and plain != dict(mine) else None
