"""What `bench` found, laid out for a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockstep.parity.cli.output import counted, table

HEAD = ("prefill", "", "", "decode", "", "", "first token", "peak memory", "dtype", "weights")
LIMITS = ("reads at", "a token", "decode at most", "reached", "multiplies at", "prefill at most",
          "reached")  # fmt: skip


def described(found: dict[str, Any]) -> str:
    """Return the tables of each prompt, and how they were measured."""
    parts = [text for run in found["runs"] for text in tables(found, run)]
    told = (
        f"tokens a second, {found['decoded']} decoded after each prompt, "
        f"{counted(found['rounds'], 'round')} in turn after a warm-up"
    )
    left_out = [f"left out: {line}" for line in found["left_out"]]
    return "\n\n".join([*parts, "\n".join([told, *left_out])])


def tables(found: dict[str, Any], run: dict[str, Any]) -> Iterator[str]:
    """Yield what the engines did with a prompt, and what the machine allows them."""
    rows: list[tuple[str, ...]] = [(f"{counted(run['prompt_tokens'], 'token')} of prompt", *HEAD)]
    for about, one in zip(found["engines"], run["engines"], strict=True):
        same = "" if one["same_tokens"] else "  (other tokens)"
        rows.append((
            one["name"], *rates(one), milliseconds(one["first_token_s"]), size(one["peak_bytes"]),
            about["dtype"], about["weights"] + same,
        ))  # fmt: skip
    yield table(rows, right=frozenset(range(1, 9)))
    limited = [one for one in run["engines"] if one["limits"] is not None]
    if limited:
        rows = [("the machine's limits", *LIMITS), *map(limits, limited)]
        yield table(rows, right=frozenset(range(1, 8)))


def rates(one: dict[str, Any]) -> Iterator[str]:
    """Yield for each phase the median, its spread, and the ratio."""
    for phase in ("prefill", "decode"):
        rate = one[f"{phase}_tokens_per_second"]
        yield f"{rate['median']:.1f}"
        yield f"{rate['low']:.1f}-{rate['high']:.1f}"
        yield f"{one[f'{phase}_ratio']:.2f}x"


def limits(one: dict[str, Any]) -> tuple[str, ...]:
    found = one["limits"]
    return (
        one["name"],
        f"{found['bytes_per_second'] / 1e9:.1f} GB/s",
        size(found["bytes_per_token"]),
        f"{found['decode_tokens_per_second']:.1f}",
        f"{found['decode_share']:.0%}",
        giga(found["operations_per_second"]),
        f"{found['prefill_tokens_per_second']:.1f}",
        f"{found['prefill_share']:.0%}",
    )


def giga(rate: float) -> str:
    """Return a rate, of two digits below ten: tiny products on a busy machine make less than 1."""
    return f"{rate / 1e9:.0f} GFLOP/s" if rate >= 1e10 else f"{rate / 1e9:.2g} GFLOP/s"


def size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
