"""What `explain` found, and its JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lockstep.parity.judging.result import Tap, tidy
from lockstep.parity.reports.reported import Reported

IDS = ("tokens", "decoded")  # what is judged around the model, in the place of taps
OPTIONAL = ("seen", "where", "put_into")  # left out of the JSON where they say nothing
STAGES = {  # from a text to an answer, and what each is called
    "tokenizer": "text to ids",
    "model": "ids to logits",
    "sampling": "logits to choices",
    "decoding": "choices to answer",
}
MOST_TIES = 4  # bugs that are said to fit as well


@dataclass
class Named:
    """A bug of the catalogue that this port has. Errors are relative root mean squares."""

    id: str
    variant: str | None
    taps: list[str]
    layers: list[int]
    confidence: float
    residual_before: float
    residual_after: float
    noise: float
    runner_up: dict[str, Any] | None
    also_fits: list[str]
    fix: str
    votes: dict[str, int] | None = None
    wrong: str = ""
    right: str = ""
    seen: str = ""  # what was counted, of a bug before or behind the model
    where: str = ""  # which tokens, if not all are wrong and a rule says which
    put_into: list[str] = field(default_factory=list)  # whose values it makes, if not `taps` alone

    def joined(self, other: Named) -> Named:
        """Return one bug that is found in two variants as one, as sure as the less sure of them."""
        variants = dict.fromkeys(v for one in (self, other) if one.variant for v in [one.variant])
        return replace(
            self,
            variant=" and ".join(variants) or None,
            taps=[*dict.fromkeys((*self.taps, *other.taps))],
            layers=sorted({*self.layers, *other.layers}),
            confidence=min(self.confidence, other.confidence),
            also_fits=[*dict.fromkeys((*self.also_fits, *other.also_fits))][:MOST_TIES],
            where=self.where if self.where == other.where else "",
            put_into=[*dict.fromkeys((*self.put_into, *other.put_into))],
        )


@dataclass
class Unexplained:
    """A piece that is wrong, and no set of known bugs makes it right.

    `inside` are taps of it that the dump lacks: with them it would be several smaller pieces.
    """

    tap: str
    own_error: float
    noise: float
    shape: str
    op: str = ""
    where: str = ""
    inside: list[str] = field(default_factory=list)


@dataclass
class Diagnosis(Reported):
    """The result of `explain`."""

    faults: list[Named] = field(default_factory=list)
    unexplained: list[Unexplained] = field(default_factory=list)
    conventions: list[str] = field(default_factory=list)
    config: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    compared: int = 0
    unmatched: list[str] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)
    counterfactual: list[dict[str, Any]] = field(default_factory=list)
    dump: str = ""
    model: str = ""
    dtype: str = ""
    seconds: float = 0.0
    taps: list[Tap] = field(default_factory=list, repr=False)
    stages: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0  # that were decoded after the prompt

    def __str__(self) -> str:
        """Return what the command line prints."""
        from lockstep.parity.explaining.said.report import report

        return report(self)  # pyright: ignore[reportArgumentType]  (it is reached by a link)

    def take(self, other: Diagnosis) -> None:
        """Add what was found in another part of the same dump; a bug that is in both is one."""
        merged = {one.id: one for one in self.faults}
        for one in other.faults:
            merged[one.id] = merged[one.id].joined(one) if one.id in merged else one
        self.faults = [*merged.values()]
        self.weights += [one for one in other.weights if one not in self.weights]
        self.conventions += [one for one in other.conventions if one not in self.conventions]
        self.unexplained += other.unexplained
        taps = {tap.name: tap for tap in self.taps}
        taps |= {tap.name: tap for tap in other.taps
                 if tap.name not in taps or tap.status != "ok"}  # fmt: skip
        self.compared += other.compared - (len(self.taps) + len(other.taps) - len(taps))
        self.taps = [*taps.values()]

    def stage(self, name: str, compared: int, *, right: bool) -> None:
        """Note that a stage of the way from text to choices was judged, by one look or by two."""
        before = next((one for one in self.stages if one["stage"] == name), None)
        if before is not None:
            self.stages.remove(before)
            compared, right = max(compared, before["compared"]), right and before["right"]
        self.stages.append({"stage": name, "compared": compared, "right": right})
        self.stages.sort(key=lambda one: [*STAGES].index(one["stage"]))

    def judged_stages(self) -> list[dict[str, Any]]:
        """Return the stages, none if the model alone was judged."""
        return self.stages if any(one["stage"] != "model" for one in self.stages) else []

    @property
    def verdict(self) -> str:
        """Clean only if nothing at all was found; `unknown` if nothing could be named."""
        if self.faults or self.config or self.weights:
            return "faults"
        return "unknown" if self.unexplained else "clean"

    def to_json(self) -> dict[str, Any]:
        found = {
            "verdict": self.verdict,
            "faults": [fault_json(one) for one in self.faults],
            "unexplained": [
                without(asdict(one), "op", *(k for k in ("where", "inside") if not getattr(one, k)))
                for one in self.unexplained
            ],
            "conventions": self.conventions,
            "config": [as_json(one) for one in self.config],
            "weights": [as_json(one) for one in self.weights],
            "coverage": {
                "compared": self.compared,
                "unmatched": self.unmatched,
                "not_judged": self.not_judged,
            },
            "counterfactual": self.counterfactual,
            "dtype": self.dtype,
            "seconds": round(self.seconds, 3),
            "taps": [tap.to_json() for tap in self.taps],
            "command": "explain",
            "model": self.model,
            "dump": self.dump,
        }
        if stages := self.judged_stages():
            found["stages"] = stages
        return tidied(found)


def fault_json(fault: Named) -> dict[str, Any]:
    return without(asdict(fault), *(name for name in OPTIONAL if not getattr(fault, name)))


def tidied(value: Any) -> Any:
    """Return a document that JSON has: figures that are not finite become their names."""
    if isinstance(value, dict):
        return {name: tidied(one) for name, one in value.items()}
    return [tidied(one) for one in value] if isinstance(value, list) else tidy(value)


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def as_json(finding: Any) -> Any:
    return finding.to_json() if hasattr(finding, "to_json") else finding
