"""Time decoders in turn on one model: by kind of prompt, and in parts up to the first token."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from lockstep.parity.bench.measure import spread
from lockstep.parity.bench.prompts import Prompt
from lockstep.parity.decoders.request import Decoder
from lockstep.parity.generating.generation import Generation
from lockstep.reference.scheduling.sampling_options import SamplingOptions

PLAIN: dict[str, float | None] = {
    "tokens_per_forward": 1.0,
    "p_cache": 1.0,
    "acceptance": None,
}


@dataclass(frozen=True)
class Way:
    """A decoder with a label."""

    label: str
    decoder: Decoder


def measure_decoders(
    model: Any,
    prompts: Sequence[Prompt],
    ways: Sequence[Way],
    *,
    max_tokens: int,
    rounds: int,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Run every way on every prompt once to warm up, then `rounds` times in turn.

    All go on greedily, the end of text or not. Returns a row for each prompt and way, with its rate
    over that of the first way on the same prompt.
    """
    rows = []
    for prompt in prompts:
        runs: dict[str, list[dict[str, Any]]] = {way.label: [] for way in ways}
        for turn in range(rounds + 1):
            for way in ways:
                found = timed(model, prompt, way, max_tokens)
                runs[way.label] += [found] if turn else []  # the first is the warm-up
                progress(way.label)
        rows += list(compared([row(prompt, way, runs[way.label]) for way in ways]))
    return rows


def timed(model: Any, prompt: Prompt, way: Way, max_tokens: int) -> dict[str, Any]:
    """Return the document of one text. A draft has read nothing of it before."""
    way.decoder.forget()
    generation = Generation(
        model, SamplingOptions(), iter(()), ignore_eos=True, decoder=way.decoder
    )
    began = time.perf_counter()
    tokens = prompt.tokens(generation.tokenizer)
    taken = time.perf_counter() - began if prompt.text is not None else 0.0
    return generation.run(tokens, max_tokens, lambda piece: None, tokenize_s=taken)


def row(prompt: Prompt, way: Way, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of a way's runs. Its counts are the same in each."""
    first = runs[0]
    parts = [parts_of(run["timings"]) for run in runs]
    return {
        "prompt": prompt.kind,
        "decoder": way.label,
        "prompt_tokens": first["prompt_tokens"],
        "made": len(first["tokens"]),
        "tokens_per_second": vars(
            spread([run["timings"]["decode_tokens_per_second"] for run in runs])
        ),
        **counts_of(first["decoder"]),
        **{name: median(part[name] for part in parts) for name in PARTS},
        "counts": first["decoder"],
    }


def counts_of(said: dict[str, Any]) -> dict[str, float | None]:
    """Return the ratios of a decoder, None where it has none; plain, a pass is a token."""
    if said["name"] == "autoregressive":
        return PLAIN
    return {name: said.get(name) for name in PLAIN}


PARTS = ("tokenize_s", "prefill_s", "steps_s", "first_token_s")


def parts_of(timings: dict[str, Any]) -> dict[str, float]:
    """Return the parts of the time to the first token.

    Plain decoding finds its first token in the prompt's own pass, so no step comes before it.
    """
    read = timings["tokenize_s"] + timings["prefill_s"]
    return {
        "tokenize_s": timings["tokenize_s"],
        "prefill_s": timings["prefill_s"],
        "steps_s": timings["first_token_s"] - read,
        "first_token_s": timings["first_token_s"],
    }


def compared(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows with their rate over that of the first."""
    base = rows[0]["tokens_per_second"]["median"]
    for one in rows:
        yield one | {"ratio": one["tokens_per_second"]["median"] / base}
