"""`explain`: which bugs are in the port that wrote this dump."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lockstep.parity.capture.ways import sums_in_half, ways_of
from lockstep.parity.chain.chain import Chain
from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.parity.excerpts.beginning import as_explained
from lockstep.parity.excerpts.excerpt import Excerpt
from lockstep.parity.explaining.before import config_findings, weight_findings
from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.behind_the_cap import behind_the_cap
from lockstep.parity.explaining.conventions.dumped_late import dumped_late
from lockstep.parity.explaining.conventions.float32_inside import SAID as FLOAT32_INSIDE
from lockstep.parity.explaining.conventions.float32_inside import float32_inside
from lockstep.parity.explaining.conventions.half_products import SAID as PRODUCTS
from lockstep.parity.explaining.conventions.half_products import half_products
from lockstep.parity.explaining.conventions.handed_in import handed_in
from lockstep.parity.explaining.conventions.port_dtype import port_dtype, stored_coarser
from lockstep.parity.explaining.conventions.rounded_once import WIDE, rounded_once
from lockstep.parity.explaining.conventions.router_shares import router_shares
from lockstep.parity.explaining.conventions.said_float32 import SAID as SAID_FLOAT32
from lockstep.parity.explaining.conventions.said_float32 import computed_in_half
from lockstep.parity.explaining.conventions.stream_in_half import stream_in_half
from lockstep.parity.explaining.copied_early import all_but_copied_early, left_out, nothing_else
from lockstep.parity.explaining.diagnosing import diagnose
from lockstep.parity.explaining.excerpts.reading import read_some
from lockstep.parity.explaining.excerpts.text import SomeCase, TextCase, too_long, undecided
from lockstep.parity.explaining.other_model import other_model, other_table
from lockstep.parity.explaining.other_weights import other_weights
from lockstep.parity.explaining.room import seem_moved, with_room
from lockstep.parity.explaining.said.diagnosis import Diagnosis, Unexplained
from lockstep.parity.explaining.said.error_shape import NOUGHT
from lockstep.parity.explaining.steps.steps import Joined, read_passes
from lockstep.parity.explaining.within_half import within_half
from lockstep.parity.explaining.written_over import WRITTEN_OVER, all_but_written_over
from lockstep.parity.faults import Fault, catalogue
from lockstep.parity.faults.mistake import Mistake
from lockstep.parity.graph import Graph
from lockstep.reference.model import Model

Progress = Callable[[str], None]
Doubt = Callable[[str], None]
# What shows that a port computed in another dtype than it seems to, and the line that says so.
DTYPES = (
    (half_products, PRODUCTS),
    (computed_in_half, SAID_FLOAT32),
    (float32_inside, FLOAT32_INSIDE),
)
# What reads a dump by its values, and why taps are unknown that it leaves out.
READINGS = (
    (all_but_written_over, WRITTEN_OVER),
    (handed_in, None),
    (behind_the_cap, None),
    (dumped_late, None),
    (router_shares, None),
    (all_but_copied_early, NOUGHT),
)


def explain(
    model: Model,
    dump: str | Path | Dump,
    *,
    tokens: Sequence[int] | None = None,
    prompt: str | None = None,
    chat: bool = False,
    dtype: str | None = None,
    names: str | Path | None = None,
    config: str | Path | None = None,
    weights: str | Path | None = None,
    faults: Iterable[Fault | Mistake] | None = None,
    progress: Progress = lambda name: None,
    doubt: Doubt = lambda line: None,
) -> Diagnosis:
    """Return every bug that a port has, from what it dumped in a prefill, and in steps after it.

    `model` is the reference model that was ported. `tokens` are the prompt's ids where the dump
    does not say them (and behind them those fed in steps), `prompt` its text (of a user's turn if
    `chat`), which those are judged by. `dtype` is what the port computed in where its values do not
    show it, `names` a map file for names of its own. `config` and `weights` are files of the port;
    they are compared before any activation is. `faults` are the bugs to think of, if not the whole
    catalogue. `doubt` is called if the dump seems to be of another checkpoint, or of other weights,
    or is stored in coarser numbers than it is judged in.
    Raises: InputError if a file is bad, the prompt unknown, or nothing in it can be compared.
    """
    began = time.perf_counter()
    result = Diagnosis(model=str(model.checkpoint.path))
    result.config += config_findings(model, config)
    result.weights += weight_findings(model, weights, result)
    dump = dump if isinstance(dump, Dump) else open_dump(dump, words=True)
    result.dump = str(dump.path)
    dump, tokens, shortened, some = as_explained(dump, tokens, model.config)
    result.conventions += shortened
    known = None if faults is None else [*faults]
    chain = Chain(model, dump, tokens=tokens, prompt=prompt, chat=chat, names=names, known=known)
    chain.before(result)
    if dump.shapes:
        asked = Asked(model, dump, tokens, dtype, names, known, progress, doubt)
        inside(asked, result) if some is None else inside_some(asked, some, result)
    chain.behind(result)
    result.seconds = time.perf_counter() - began
    return result


@dataclass(frozen=True)
class Asked:
    """What a call asks about the tensors of a dump."""

    model: Model
    dump: Dump
    tokens: Sequence[int] | None
    dtype: str | None
    names: str | Path | None
    faults: Sequence[Fault | Mistake] | None
    progress: Progress
    doubt: Doubt

    def bugs(self) -> Sequence[Fault]:
        """Return the bugs to think of, those first that this way of capture makes likely."""
        every = catalogue() if self.faults is None else self.faults
        return ways_of(self.dump).ordered([one for one in every if isinstance(one, Fault)])

    def of_other_model(self, sides: Joined, graph: Graph) -> bool:
        """Say the doubt that taps are another model's, unless a map gives names; say whether so.

        Such a dump may be refused after it.
        """
        if self.names is not None:
            return False
        lines = other_model(sides, graph.tap_shapes, self.model.checkpoint.path.name)
        for line in lines:
            self.doubt(line)
        return bool(lines)

    def precision(self, sides: Joined, graph: Graph) -> tuple[str, list[str]]:
        """Return what the port computed in, and how that was found out, if it was not said."""
        return (self.dtype, []) if self.dtype else port_dtype(sides, graph.tap_shapes)


def inside(asked: Asked, result: Diagnosis) -> None:
    """Judge the tensors of a dump that has all tokens of its prompt."""
    graph, sides = read_passes(asked.model, asked.dump, asked.tokens, asked.names)
    wide = asked.of_other_model(sides, graph)
    case, found_out = in_own_dtype(graph, sides, asked)
    result.dtype, sides, said = case.dtype, case.sides, asked.dtype is not None
    mixed = stored_coarser(sides, graph.tap_shapes, result.dtype, said=said)
    blank = nothing_else(case)
    case, otherwise, gone = read_by_values(roomy(case, asked), asked)
    doubts = mixed or blank or other_table(case)
    for line in [] if wide or (said and mixed) else doubts:
        asked.doubt(line)
    diagnose(case, result, asked.progress)
    result.unexplained += gone
    strange = other_weights(case)
    for line in [] if wide or doubts else strange:  # which are reasons of their own
        asked.doubt(line)
    halved = [] if said or gone else within_half(case, result)
    told = [*sides.plan, *blank, *otherwise, *found_out, *mixed, *strange, *halved]
    conclude(asked, told, result)


def in_own_dtype(graph: Graph, sides: Joined, asked: Asked) -> tuple[Case, list[str]]:
    """Return the case in what the port computed in, and a line on how that was found out."""
    dtype, found_out = asked.precision(sides, graph)
    case = Case(asked.model, graph, sides, dtype, asked.bugs())
    if found_out and (rounded_once(case) or stream_in_half(case)):
        case, found_out = case.in_dtype(WIDE), []
    for own_dtype, line in DTYPES if asked.dtype is None else ():
        if (own := own_dtype(case)) is not None:
            found_out, case = [line.format(wide=case.dtype, own=own)], case.in_dtype(own)
    return case, found_out


def roomy(case: Case, asked: Asked) -> Case:
    """Return the case of a model with room in all layers, if adapters seem to be on other ones."""
    model = with_room(asked.model)
    if model is None or not seem_moved(case):
        return case
    passes = read_passes(model, asked.dump, asked.tokens, asked.names)
    return Case(model, *passes, case.dtype, asked.bugs())


def read_by_values(case: Case, asked: Asked) -> tuple[Case, list[str], list[Unexplained]]:
    """Return the case of the taps that the values show, a line for what was read otherwise, and
    what was left out.
    """
    told: list[str] = []
    gone: list[Unexplained] = []
    for read, why in READINGS:
        sides, lines = read(case)
        if lines:
            gone += left_out(case.sides, sides, why) if why else []
            case = Case(case.model, case.graph, sides, case.dtype, asked.bugs())
        told += lines
    return case, told, gone


def inside_some(asked: Asked, some: Excerpt, result: Diagnosis) -> None:
    """Judge the tensors of a dump that has some tokens of its prompt."""
    read = read_some(asked.model, asked.dump, some, asked.tokens, asked.names)
    result.dtype, found_out = asked.precision(read.sides, read.graph)
    case = SomeCase(asked.model, read, result.dtype, asked.bugs())
    diagnose_some(case, asked.bugs(), result, asked.progress)
    strange = other_weights(case)
    for line in strange:
        asked.doubt(line)
    conclude(asked, [*case.sides.plan, *found_out, *strange], result)


def conclude(asked: Asked, told: Sequence[str], result: Diagnosis) -> None:
    """Say what the dump was read as; and, if something is left, which sums may be of half."""
    result.conventions += told
    if result.unexplained:
        stored = asked.model.checkpoint
        packed = any(stored.stored(name).packed for name in stored.names)
        result.conventions += sums_in_half(asked.dump, result.dtype, packed=packed)


def diagnose_some(
    case: SomeCase, known: Sequence[Fault], result: Diagnosis, progress: Progress
) -> None:
    """Judge some tokens: what works token by token, then what attention makes, as far as known."""
    diagnose(case, result, progress)
    with closing(TextCase(case, known)) as text:
        long = too_long(text)
        result.conventions += [long] if long else []
        if text.numbers and not long:
            rest = Diagnosis()
            diagnose(text, rest, progress)
            result.take(rest)
            result.taps.sort(key=lambda tap: case.graph.taps[tap.name])
            result.conventions += text.doubts
        result.unexplained += text.not_alike()
        result.not_judged = sorted({*result.not_judged, *undecided(text, long=bool(long))})
