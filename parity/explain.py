"""`explain`: which bugs are in the port that wrote this dump."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from lockstep.parity.capture.ways import sums_in_half, ways_of
from lockstep.parity.chain.chain import Chain
from lockstep.parity.dumps.dump import Dump, open_dump
from lockstep.parity.excerpts.beginning import as_explained
from lockstep.parity.excerpts.excerpt import Excerpt
from lockstep.parity.explaining.before import config_findings, weight_findings
from lockstep.parity.explaining.caches.compared import read_caches
from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.codes import settle_codes
from lockstep.parity.explaining.conventions.port_dtype import port_dtype
from lockstep.parity.explaining.conventions.readings import read_as_meant
from lockstep.parity.explaining.conventions.rounded_once import WIDE, rounded_once
from lockstep.parity.explaining.conventions.rounded_when_stored import sort_as_stored
from lockstep.parity.explaining.conventions.square import read_turned
from lockstep.parity.explaining.deciding.at_its_end import keep_ended
from lockstep.parity.explaining.deciding.by_bits import keep_heard
from lockstep.parity.explaining.deciding.contradiction import Beside
from lockstep.parity.explaining.deciding.done_before import withdraw_done_before
from lockstep.parity.explaining.deciding.duel import winners
from lockstep.parity.explaining.deciding.one_bug import with_shared_ties
from lockstep.parity.explaining.deciding.one_rule import keep_one_rule
from lockstep.parity.explaining.deciding.rules import give_up_rules
from lockstep.parity.explaining.deciding.subtle import subtle, withdraw_noise
from lockstep.parity.explaining.deciding.verdict import decide
from lockstep.parity.explaining.excerpts.reading import read_some
from lockstep.parity.explaining.excerpts.text import SomeCase, TextCase, too_long
from lockstep.parity.explaining.other_model import other_model
from lockstep.parity.explaining.room import seem_moved, with_room
from lockstep.parity.explaining.said.diagnosis import Diagnosis, Named, Unexplained
from lockstep.parity.explaining.said.error_shape import shape_of_error
from lockstep.parity.explaining.said.naming import named, named_by_vote
from lockstep.parity.explaining.said.report import listed, remark
from lockstep.parity.explaining.searching.untrained import Random, untrained, untrained_beside
from lockstep.parity.explaining.searching.untrained_and_more import untrained_and_more
from lockstep.parity.explaining.steps.steps import read_passes
from lockstep.parity.explaining.steps.whereabouts import whereabouts
from lockstep.parity.explaining.whole_runs import whole_runs
from lockstep.parity.faults import Fault, catalogue
from lockstep.parity.faults.mistake import Mistake
from lockstep.parity.graph.graph import Piece
from lockstep.reference.model import Model

Progress = Callable[[str], None]
Doubt = Callable[[str], None]
FARTHER = "below a rounding: bits that a known bug would turn are turned, but more than by any"


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
    catalogue. `doubt` is called if the dump seems to be of another checkpoint, before the search.
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
        inside(model, dump, tokens, dtype, names, known, result, progress, doubt, some)
    chain.behind(result)
    result.seconds = time.perf_counter() - began
    return result


def inside(
    model: Model,
    dump: Dump,
    tokens: Sequence[int] | None,
    dtype: str | None,
    names: str | Path | None,
    faults: Iterable[Fault | Mistake] | None,
    result: Diagnosis,
    progress: Progress,
    doubt: Doubt,
    some: Excerpt | None = None,
) -> None:
    """Judge the tensors of a dump; `some` says which tokens of the prompt it has, if not all."""
    if some is None:
        graph, sides = read_passes(model, dump, tokens, names)
    else:
        read = read_some(model, dump, some, tokens, names)
        graph, sides = read.graph, read.sides
    shapes = {tap: graph.shapes[number] for tap, number in graph.taps.items()}
    if some is None and names is None:
        for line in other_model(sides, shapes, model.checkpoint.path.name):
            doubt(line)
    result.dtype, found_out = (dtype, []) if dtype else port_dtype(sides, shapes)
    every = catalogue() if faults is None else faults
    known = ways_of(dump).ordered([one for one in every if isinstance(one, Fault)])
    if some is None:
        case = Case(model, graph, sides, result.dtype, known)
        if found_out and rounded_once(case):
            result.dtype, found_out = WIDE, []
            sides.moved.clear()
            case = Case(model, graph, sides, WIDE, known)
        if (roomy := with_room(model)) is not None and seem_moved(case):
            case = Case(roomy, *read_passes(roomy, dump, tokens, names), result.dtype, known)
        diagnose(case, result, progress)
    else:
        case = SomeCase(model, read, result.dtype, known)
        diagnose_some(case, known, result, progress)
        sides = case.sides
    result.conventions += [*sides.plan, *found_out]
    if result.unexplained:
        packed = any(model.checkpoint.stored(name).packed for name in model.checkpoint.names)
        result.conventions += sums_in_half(dump, result.dtype, packed=packed)


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
            result.conventions += text.told
        result.unexplained += text.not_alike()


def diagnose(case: Case, result: Diagnosis, progress: Progress) -> None:
    """Judge every piece, explain those that are wrong, and put it together in `result`."""
    if case.sides.caches:
        case.cached = read_caches(case)
    later = ways_of(case.sides.dump).scales_later
    result.conventions += read_as_meant(case.trial, later=later)
    result.conventions += read_turned(case.trial)
    case.sort(progress)
    result.conventions += sort_as_stored(case, progress)
    random = list(untrained(case))
    case.wrong = but_for(random, case.wrong)
    case.search(progress)
    give_up_rules(case, [one.piece for one in random])
    random = [one for one in random if one.seen or not case.explained_after_all(one.piece)]
    keep_one_rule(case)
    keep_ended(case)
    random += untrained_beside(case)
    case.open = but_for(random, case.open)
    random += untrained_and_more(case)
    case.open = but_for(random, case.open)
    result.conventions += settle_codes(case)
    explained = keep_heard(winners(case.explained, case.trial), case.trial)
    beside = Beside(case.trial, case.right, explained)
    chosen = decide(explained, case.contradicted(), beside, case.graph.kind)
    withdraw_done_before(chosen, case)
    with_shared_ties(chosen, case.graph)
    quiet, farther, freed = subtle(case, chosen.values())
    withdraw_noise(chosen, freed)
    found = [*(one.named for one in random), *(named(bug, case) for bug in chosen.values())]
    found += case.cached.bugs
    file(found + [named_by_vote(bug, votes, case) for bug, votes in quiet], case, result)
    case.set_aside()
    result.unexplained += [unexplained(piece, case) for piece in in_order(case.open)]
    result.unexplained += [replace(unexplained(one, case), shape=FARTHER) for one in farther]
    result.unexplained += contrary(case) + case.cached.open
    result.conventions += case.cached.told
    result.unexplained += [misread(tap, case) for tap in case.misshapen]
    result.compared = len(case.judged) + case.cached.unjudged
    result.steps = len(case.graph.steps)
    result.unmatched = sorted(
        name for tap, name in case.sides.names.items() if tap not in case.graph.taps
    )
    chosen |= {(bug.hypothesis.id, bug.hypothesis.variant): bug for bug, _ in quiet}
    result.taps, result.counterfactual = whole_runs(case, chosen)


def but_for(random: list[Random], pieces: list[Piece]) -> list[Piece]:
    return [piece for piece in pieces if all(piece is not one.piece for one in random)]


def file(found: list[Named], case: Case, result: Diagnosis) -> None:
    """Put what was named where it belongs: bugs, conventions, a quantisation of the port's own."""
    entries = case.faults
    merged: dict[str, Named] = {}
    for one in found:
        merged[one.id] = merged[one.id].joined(one) if one.id in merged else one
    for one in merged.values():
        if not entries[one.id].convention:
            result.faults.append(one)
        elif one.id.startswith("port-quantised-"):
            result.weights.append(f"{remark(one)}; seen at {listed(one.taps)}; {one.fix}")
        else:
            result.conventions.append(remark(one))


def in_order(pieces: list[Piece]) -> list[Piece]:
    return sorted(pieces, key=lambda piece: piece.target)


def unexplained(piece: Piece, case: Case) -> Unexplained:
    judgement = case.judged[piece.target]
    return Unexplained(
        tap=case.tap(piece),
        own_error=judgement.own_error,
        noise=judgement.noise,
        shape=shape_of_error(case.trial, piece) + case.doubt(piece),
        op=case.graph.calls[piece.target].op,
        where=whereabouts([piece], case),
    )


def contrary(case: Case) -> list[Unexplained]:
    """Report second dumps of a value, such as `logits` next to `lm_head`, that alone are wrong."""
    found = []
    for tap in case.twins:
        number = case.graph.taps[tap]
        if number not in case.judged:
            continue
        piece = case.graph.piece(number, case.dumped)
        other = case.trial.over({number: case.twin(tap)})
        judged = other.judge(piece)
        if not judged.passed:
            said = f"{shape_of_error(other, piece)}; {case.tap(piece)} is the same value"
            name = case.sides.names[tap]
            found.append(Unexplained(name, judged.own_error, judged.noise, said))
    return found


def misread(tap: str, case: Case) -> Unexplained:
    """Report a tensor whose shape or kind alone is wrong."""
    name, found, wanted = case.sides.misfit(tap, case.graph.shapes[case.graph.taps[tap]])
    said = f"shape {list(found)}, but should be {list(wanted)}"
    if case.sides.read(tap, case.graph.shapes[case.graph.taps[tap]]).dtype.kind in "iubc":
        said = "whole or complex numbers, but should be real ones"
    return Unexplained(name, 1.0, 0.0, said)
