"""What a planted bug is, and the list of all of them."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

FAMILIES = (
    "embedding", "norm", "rope", "attention", "mask", "activation", "moe", "loading",
    "quantisation", "dtype", "lora", "logits", "residual",
)  # fmt: skip
# The order in which bugs are planted: in what a port reads, in what it builds, in parts of its
# modules, around these, around what is around them, and at last in the loop over the layers: a
# layer that has gone is not one that another bug can be planted in.
STAGES = ("adapter", "config", "packed", "weights", "parts", "modules", "around", "loop")
EVERY_DTYPE = ("float32", "bfloat16", "float16")
HALF = ("bfloat16", "float16")

Plant = Callable[..., Any]


@dataclass(frozen=True)
class Bug:
    """One variant of a class of the catalogue.

    `site` is what it changes: two bugs of one site contradict or hide each other, and are not
    planted together. `when(subject, **settings)` says where it exists, `plant(what, **settings)`
    puts it there; what it gets depends on the stage. `prompt` is the prompt that shows it, and
    `benign` why nothing that a dump holds changes by more than rounding.
    """

    id: str
    variant: str
    site: str
    stage: str
    when: Plant
    plant: Plant
    settings: dict[str, Any] = field(default_factory=dict)
    dtypes: Collection[str] = EVERY_DTYPE
    prompt: str = "long"
    benign: str = ""

    @property
    def name(self) -> str:
        return f"{self.id} ({self.variant})" if self.variant else self.id


@dataclass(frozen=True)
class Subject:
    """What a bug may be planted in: a folder's config as transformers reads it, and the rest."""

    config: Any
    dtype: str = "float32"
    packed: bool = False
    adapter: dict[str, Any] | None = None


BUGS: list[Bug] = []


def bug(
    id: str,
    *,
    site: str,
    when: Plant,
    stage: str = "modules",
    variants: dict[str, dict[str, Any]] | None = None,
    **more: Any,
) -> Callable[[Plant], Plant]:
    """Register the function below under a catalogue id, once for each of its variants."""

    def register(plant: Plant) -> Plant:
        for variant, settings in (variants or {"": {}}).items():
            BUGS.append(Bug(id, variant, site, stage, when, plant, settings, **more))
        return plant

    return register


def every_bug() -> list[Bug]:
    for family in FAMILIES:
        import_module(f"tests.proof.bugs.{family}")
    return BUGS


def applicable(subject: Subject, bugs: Iterable[Bug] | None = None) -> list[Bug]:
    """Return the bugs that exist in a port of this subject."""
    return [one for one in (bugs if bugs is not None else every_bug()) if exists(one, subject)]


def exists(one: Bug, subject: Subject) -> bool:
    if subject.dtype not in one.dtypes:
        return False
    if (one.stage == "packed") != subject.packed and one.stage in ("packed", "weights"):
        return False  # what is packed is not read as it is stored
    if one.stage == "adapter" and subject.adapter is None:
        return False
    kinds = set(getattr(subject.config, "layer_types", None) or ())
    if one.settings.get("layers") in ("sliding", "full") and len(kinds) < 2:
        return False  # all layers are of one kind
    return bool(one.when(subject, **one.settings))


def in_order(bugs: Iterable[Bug]) -> list[Bug]:
    """Sort bugs as they are planted, whatever order they were drawn in."""
    return sorted(bugs, key=lambda one: (STAGES.index(one.stage), one.site, one.name))


def named(name: str) -> Bug:
    """Return the bug of an id, or of an id with its variant in brackets."""
    found = [one for one in every_bug() if name in (one.name, one.id)]
    if not found:
        raise KeyError(f"no bug is called {name}")
    return found[0]
