"""Judge a port's ids by its prompt: which mistakes give exactly these ids."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.parity.chain.fitting import Fit, best_fit, candidates
from lockstep.parity.chain.named import named
from lockstep.parity.chain.prompt import Prompt, prompt_of
from lockstep.parity.chain.said import Said
from lockstep.parity.cli.output import counted
from lockstep.parity.explaining.said.diagnosis import Diagnosis, Unexplained
from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.model import Model

SHOWN = 12  # ids of the text that is shown where two lists part


def judge_tokens(model: Model, said: Said, mistakes: Sequence[Mistake], result: Diagnosis) -> None:
    """Compare the port's ids with those of the reference's tokenizer, and name what parts them."""
    from lockstep.reference.tokenizer.tokenizer import load_tokenizer

    tokens = said.tokens
    if not said.has_prompt or not tokens:
        return
    try:
        tokenizer = load_tokenizer(model.checkpoint.path)
    except InputError as error:
        result.conventions.append(f"the token ids are not judged: {error}")
        return
    prompt = prompt_of(tokenizer, said.text, said.messages, said.variables)
    right = prompt.ids() or []
    result.stage("tokenizer", len(tokens), right=tokens == right)
    if tokens == right:
        return
    fit = fitting(prompt, tokens, mistakes)
    before = apart(right, tokens)
    if fit is None:
        told = where_they_part(prompt, right, tokens)
        result.unexplained.append(Unexplained("tokens", before, 0.0, told))
    else:
        seen = f"{told_sizes(right, tokens)}; with this, all {len(tokens)} are the port's"
        result.faults += named(fit, "tokens", before, seen)


def fitting(prompt: Prompt, tokens: list[int], mistakes: Sequence[Mistake]) -> Fit | None:
    return best_fit(
        candidates(mistakes), prompt.ids, lambda made: apart(made, tokens), together=may_go_together
    )


def may_go_together(first: Edit, second: Edit) -> bool:
    """Of what takes long, another tokenizer or a template rendered anew, there is one at most."""
    tokenizer = ("file", "backend", "encode")
    both = {first.step, second.step}
    return both != {"chat"} and not (first.step in tokenizer and second.step in tokenizer)


def apart(ours: Sequence[int], theirs: Sequence[int]) -> float:
    """Return the share of ids between the first and the last that differ."""
    if [*ours] == [*theirs]:
        return 0.0
    longer, shorter = max(len(ours), len(theirs)), min(len(ours), len(theirs))
    start = alike(ours, theirs)
    end = min(alike(ours[::-1], theirs[::-1]), shorter - start)
    return max(longer - start - end, 1) / longer


def alike(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Return how many ids two lists begin with in common."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


def told_sizes(right: Sequence[int], tokens: Sequence[int]) -> str:
    where = alike(right, tokens)
    wanted = "" if len(tokens) == len(right) else f" for {len(right)}"
    return f"{counted(tokens, 'id')}{wanted}, other ones from number {where} on"


def where_they_part(prompt: Prompt, right: Sequence[int], tokens: Sequence[int]) -> str:
    """Show the first id that differs, and the text from there on, on both sides."""
    where = alike(right, tokens)
    port, ours = (around(prompt, ids, where) for ids in (tokens, right))
    return f"number {where} is {port}, but should be {ours}"


def around(prompt: Prompt, ids: Sequence[int], where: int) -> str:
    if where >= len(ids):
        return "missing"
    token = prompt.tokenizer.token(ids[where])
    text = prompt.backend.decode(
        [one for one in ids[where : where + SHOWN] if one < prompt.tokenizer.size],
        skip_special_tokens=False,
    )
    return f"{ids[where]} ({show(token, 24)}, of {show(text, 48)})"
