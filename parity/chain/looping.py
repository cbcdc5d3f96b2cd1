"""Judge what an answer shows by itself: where it begins, where it ends, how long it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lockstep.parity.chain.fitting import Candidate, Fit
from lockstep.parity.chain.named import named
from lockstep.parity.chain.replay import Run, missed
from lockstep.parity.chain.said import Said
from lockstep.parity.cli import output
from lockstep.parity.explaining.said.diagnosis import Diagnosis, Named, Unexplained
from lockstep.parity.faults.mistake import Mistake
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model

ENDS = "the next choice ends the text, and is not handed out"
MAY_END = "whether the next choice ends the text is not known, so the length is not judged"


def judge_answer(
    model: Model, said: Said, run: Run, mistakes: Sequence[Mistake], result: Diagnosis
) -> Run:
    """Name what is wrong with an answer as a list; return it without a prompt that it echoes."""
    known = {one.id: one for one in mistakes}
    tokens, answer, found = run.tokens, run.answer, []
    if echoes(run):
        told = f"the answer begins with the prompt, {output.counted(tokens, 'id')}"
        found += counted(known, "prompt-echoed", "", len(tokens) / len(answer), told)
        run = replace(run, answer=answer[len(tokens) :])
    settings = said.settings or {}
    ends = set() if settings.get("ignore_eos") else stop_ids(model)
    found += ended(known, run.answer, ends)
    limit = settings.get("max_new_tokens") if said.own_answer else None
    if limit is not None:
        found += length(known, run, int(limit), ends, result)
    result.faults += found
    if ends or limit is not None or found:
        result.stage("decoding", len(said.answer), right=not found)
    return run


def echoes(run: Run) -> bool:
    """Say whether an answer begins with its prompt, and would not by right.

    Where choices cannot be made again, more than one id has to be the same.
    """
    tokens, answer, count = [*run.tokens], [*run.answer], len(run.tokens)
    if len(answer) <= count or answer[:count] != tokens:
        return False
    behind = replace(run, answer=answer[count:])
    if run.settings.temperature and len(run.uniforms or ()) < len(answer):
        return count > 1
    first, second = run.replayed(()), behind.replayed(())
    if not first or not second:
        return count > 1
    return missed(first) > 0 and (
        missed(second) == 0 or missed(second) < missed(first) * (count > 1)
    )


def stop_ids(model: Model) -> set[int]:
    """Return the ids that end a text: generation_config's and the tokenizer's."""
    from lockstep.reference.tokenizer.tokenizer import load_tokenizer

    try:
        own = load_tokenizer(model.checkpoint.path).eos_token_ids
    except InputError:
        own = frozenset()
    return {*model.checkpoint.generation.eos_token_ids, *own}


def ended(known: dict[str, Mistake], answer: Sequence[int], ends: set[int]) -> Iterator[Named]:
    """Find an end of text that the answer runs over."""
    passed = [token for token in answer[:-1] if token in ends]
    if not passed:
        return
    at = next(at for at, token in enumerate(answer) if token in ends)
    more = output.counted(answer[at + 1 :], "id follows", "ids follow")
    told = f"id {answer[at]} at place {at} ends the text, and {more}"
    share = (len(answer) - 1 - at) / len(answer)
    stopped = answer[-1] in ends and answer[-1] not in passed
    first, other = ("eos-set-incomplete", "eos-ignored") if stopped else (
        "eos-ignored", "eos-set-incomplete"
    )  # fmt: skip
    # Who stops at another id knows how to stop; who never does may know only ids that never came.
    both = not stopped and len(ends) > len({*passed})
    yield from counted(known, first, "", share, told, (other,) if both else ())


def length(
    known: dict[str, Mistake], run: Run, limit: int, ends: set[int], result: Diagnosis
) -> list[Named]:
    """Find an answer that is longer than it may be, or ends before its time."""
    answer = run.answer
    told = f"{output.counted(answer, 'id')}, where {limit} were asked for"
    stopped = bool(answer) and answer[-1] in ends
    if len(answer) == limit + 1:
        return counted(known, "max-tokens-off-by-one", "one more", 1 / len(answer), told)
    if len(answer) < limit and ends and not stopped:
        ending = run.may_end(ends)
        if ending is not False:
            result.conventions.append(f"{told}: {ENDS if ending else MAY_END}")
            return []
    if len(answer) == limit - 1 and not stopped:
        return counted(known, "max-tokens-off-by-one", "one fewer", 1 / limit, told)
    if len(answer) > limit or (len(answer) < limit and not stopped):
        more = "" if len(answer) > limit else ", and none of them ends the text"
        share = abs(len(answer) - limit) / max(len(answer), limit)
        result.unexplained.append(Unexplained("decoded", share, 0.0, told + more))
        result.stage("decoding", len(answer), right=False)
    return []


def counted(
    known: dict[str, Mistake],
    id: str,
    variant: str,
    share: float,
    told: str,
    ties: tuple[str, ...] = (),
) -> list[Named]:
    """Return a bug that was found by counting, if it is one of those to think of."""
    if id not in known:
        return []
    one = Candidate(known[id], variant, known[id].variants[variant])
    return named(Fit((one,), (ties,), None), "decoded", share, told)
