"""The JSON of `check`, `diff` and `explain`, read as what it is: a file that anyone may have made.

Every text comes out of here printable: what could steer a terminal, a page or a runner is escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.parity.explaining.said.diagnosis import Named, Unexplained
from lockstep.parity.judging.result import Tap
from lockstep.parity.reports.fields import NAME, Fields, clean
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.strict_json import JsonLimits, read_json_object

LIMITS = JsonLimits(size=64 << 20, entries=4_000_000, depth=12)
VERDICTS = {
    "check": ("parity", "diverged"),
    "diff": ("parity", "diverged"),
    "explain": ("clean", "faults", "unknown"),
}
STATUSES = ("ok", "inherited", "diverged", "differs", "not judged")
KEY = "is no result of lockstep check, diff or explain: "


@dataclass(frozen=True)
class Finding:
    """What is otherwise with the port's config or weights."""

    title: str
    text: str
    fix: str


@dataclass(frozen=True)
class Spread:
    """A histogram as `parity.histogram` counts it, without that module's numpy."""

    zero: int
    first: int
    counts: tuple[int, ...]
    not_finite: int


@dataclass(frozen=True)
class Document:
    """A result. `left` is what `right`, the port, should be; for `explain` model and dump."""

    command: str
    verdict: str
    left: str
    right: str
    dtype: str
    taps: tuple[Tap, ...]
    compared: int
    unmatched: tuple[str, ...]
    not_judged: tuple[str, ...]
    conventions: tuple[str, ...]
    faults: tuple[Named, ...] = ()
    unexplained: tuple[Unexplained, ...] = ()
    files: tuple[Finding, ...] = ()
    counterfactual: tuple[tuple[tuple[str, ...], float], ...] = ()
    stages: tuple[tuple[str, int, bool], ...] = ()  # name, how much was compared, whether right

    @property
    def good(self) -> bool:
        return self.verdict in ("parity", "clean")


def read(path: str | Path) -> Document:
    """Read RESULT.json. Raises: InputError if it is none, or too large."""
    return parsed(read_json_object(Path(path), subject="the result", limits=LIMITS), str(path))


def parsed(values: dict[str, Any], path: str) -> Document:
    """Return the document in a JSON object; `path` is named in what is raised.

    Raises: InputError if it is not the result of one of the three commands.
    """
    fields = Fields(values, path)
    command = command_of(fields)
    if fields.get("verdict") not in VERDICTS[command]:
        raise fields.refuse("verdict", " or ".join(VERDICTS[command]))
    return (diagnosed if command == "explain" else compared)(fields, command)


def command_of(fields: Fields) -> str:
    """Say which command wrote a document; those of before `command` was said, by their keys."""
    if "verdict" not in fields.values:
        raise InputError(fields.path, f"{KEY}it has no verdict")
    said = fields.get("command")
    if said is None:
        said = "explain" if "faults" in fields.values else "diff"
    if not isinstance(said, str) or said not in VERDICTS:
        raise InputError(fields.path, f"{KEY}its command is {clean(str(said), 40)}")
    needed = ("faults", "coverage") if said == "explain" else ("taps", "compared")
    missing = [name for name in needed if fields.get(name) is None]
    if missing:
        raise InputError(fields.path, f"{KEY}it has no {missing[0]}")
    return said


def compared(fields: Fields, command: str) -> Document:
    taps = tuple(map(tap, fields.objects("taps")))
    return Document(
        command=command,
        verdict=fields.text("verdict"),
        left=fields.text("left", NAME) or "the reference",
        right=fields.text("right", NAME) or "the port",
        dtype="",
        taps=taps,
        compared=fields.whole("compared"),
        unmatched=fields.texts("unmatched", NAME),
        not_judged=tuple(one.name for one in taps if one.status == "not judged"),
        conventions=fields.texts("conventions"),
    )


def diagnosed(fields: Fields, command: str) -> Document:
    coverage = fields.object("coverage") or Fields({}, fields.path)
    return Document(
        command=command,
        verdict=fields.text("verdict"),
        left=fields.text("model", NAME) or "the model",
        right=fields.text("dump", NAME) or "the port",
        dtype=fields.text("dtype", NAME),
        taps=tuple(map(tap, fields.objects("taps"))),
        compared=coverage.whole("compared"),
        unmatched=coverage.texts("unmatched", NAME),
        not_judged=coverage.texts("not_judged", NAME),
        conventions=fields.texts("conventions"),
        faults=tuple(map(named, fields.objects("faults"))),
        unexplained=tuple(map(unexplained, fields.objects("unexplained"))),
        files=(*findings(fields, "config"), *findings(fields, "weights")),
        stages=tuple(map(stage, fields.objects("stages"))),
        counterfactual=tuple(
            (row.texts("fixed", NAME), always(row.number("logits_error")))
            for row in fields.objects("counterfactual")
        ),
    )


def stage(fields: Fields) -> tuple[str, int, bool]:
    return fields.text("stage", NAME), fields.whole("compared"), fields.get("right") is True


def tap(fields: Fields) -> Tap:
    if fields.get("status") not in STATUSES:
        raise fields.refuse("status", "one of " + ", ".join(STATUSES))
    figures = ("max_abs", "rms_rel", "cosine", "gain", "own_error", "inherited_error", "noise",
               "ratio")  # fmt: skip
    return Tap(
        name=fields.text("name", NAME) or "(no name)",
        op=fields.text("op", NAME) or None,
        shape=fields.wholes("shape"),
        status=fields.text("status"),
        place=fields.text("place") or None,
        histogram=spread(fields.object("histogram")),  # pyright: ignore[reportArgumentType]
        **{name: fields.number(name) for name in figures},
    )


def spread(fields: Fields | None) -> Spread | None:
    """Return a histogram. Raises: InputError if it is not as `check` writes them."""
    if fields is None:
        return None
    counts, first = fields.wholes("counts"), fields.get("first")
    if len(counts) > 40 or any(one < 0 for one in counts):
        raise fields.refuse("counts", "a list of at most 40 counts")
    if isinstance(first, bool) or not isinstance(first, int) or not -40 <= first <= 40:
        raise fields.refuse("first", "a whole number from -40 to 40")
    return Spread(fields.whole("zero"), first, counts, fields.whole("not_finite"))


def named(fields: Fields) -> Named:
    rival = fields.object("runner_up")
    votes = fields.object("votes")
    return Named(
        id=fields.text("id", NAME) or "(no id)",
        variant=fields.text("variant", NAME) or None,
        taps=[*fields.texts("taps", NAME)],
        layers=[*fields.wholes("layers")],
        confidence=always(fields.number("confidence")),
        residual_before=always(fields.number("residual_before")),
        residual_after=always(fields.number("residual_after")),
        noise=always(fields.number("noise")),
        runner_up=rival
        and {"id": rival.text("id", NAME), "residual": always(rival.number("residual"))},
        also_fits=[*fields.texts("also_fits", NAME)],
        fix=fields.text("fix"),
        votes=votes and {name: votes.whole(name) for name in ("fault", "right")},
        wrong=fields.text("wrong"),
        right=fields.text("right"),
        seen=fields.text("seen"),
        put_into=[*fields.texts("put_into", NAME)],
    )


def unexplained(fields: Fields) -> Unexplained:
    return Unexplained(
        tap=fields.text("tap", NAME) or "(no name)",
        own_error=always(fields.number("own_error")),
        noise=always(fields.number("noise")),
        shape=fields.text("shape"),
    )


def findings(fields: Fields, name: str) -> tuple[Finding, ...]:
    """Return what is said of the config or the weights: a sentence, or an object of such."""
    said = fields.items(name, object, "findings")
    return tuple(finding(Fields({"text": one} if isinstance(one, str) else one, fields.path,
                                f"{name}[{index}]."), name)
                 if isinstance(one, str | dict) else refused(fields, name)
                 for index, one in enumerate(said))  # fmt: skip


def refused(fields: Fields, name: str) -> Finding:
    raise fields.refuse(name, "a list of findings")


def finding(fields: Fields, name: str) -> Finding:
    key = fields.text("key", NAME)
    text = fields.text("text") or ", ".join(filter(None, map(fields.text, ("kind", "effect"))))
    fault = fields.text("fault", NAME)
    title = f"{name}: {key}" if key else name
    return Finding(title, f"{text} [{fault}]" if fault else text, fields.text("fix"))


def always(value: float | None) -> float:
    return float("nan") if value is None else value
