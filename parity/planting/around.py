"""Make a mistake before or behind a model, and say what becomes of a prompt, or of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.parity.chain.prompt import Prompt
from lockstep.parity.chain.replay import Run, missed
from lockstep.parity.chain.rows import ReferenceRows
from lockstep.parity.chain.sampler import Settings
from lockstep.parity.chain.tokenizing import told_sizes, where_they_part
from lockstep.parity.faults.mistake import Edit, Mistake
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model

SAID = " Is 12 + 345 more? <|im_end|>\nIt's caf\u00e9, e\u0301 and \u65e5. "
STEPS = 24
SETTINGS = (
    Settings(
        3.0, 12, 0.9, 0.05,
        repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1,
    ),
    Settings(),
    Settings(2.0),
    Settings(2.0, top_p=0.5),
    Settings(2.0, logit_bias=tuple((token, 12.0) for token in range(5, 9))),
    Settings(2.0, given=frozenset({"temperature"})),
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """What a form of a mistake does: how much is another, and where that begins."""

    variant: str
    how_much: str
    first: str


def make(mistake: Mistake, model: Model) -> list[Made]:
    """Make every form of a mistake that shows in one of a few prompts, or draws, of this model."""
    edits = mistake.variants.items()
    found = prompts_of(model) if mistake.where == "tokens" else runs_of(model)
    made = [next((one for of in found if (one := shown(of, name, edit))), None)
            for name, edit in edits]  # fmt: skip
    return [one for one in made if one is not None]


def shown(of: Prompt | Run, variant: str, edit: Edit) -> Made | None:
    try:
        return of_ids(of, variant, edit) if isinstance(of, Prompt) else of_run(of, variant, edit)
    except InputError:
        return None


def of_ids(prompt: Prompt, variant: str, edit: Edit) -> Made | None:
    right, ids = prompt.ids() or [], prompt.ids([edit])
    if not ids or ids == right:
        return None
    return Made(variant, told_sizes(right, ids), where_they_part(prompt, right, ids))


def of_run(run: Run, variant: str, edit: Edit) -> Made | None:
    pairs = run.replayed([edit]) if edit.step != "answer" else None
    if not pairs or not missed(pairs):
        return None
    at = next(at for at, (wrong, right) in enumerate(pairs) if wrong != right)
    count = sum(wrong != right for wrong, right in pairs)
    where = f"choice {at} is {pairs[at][0]}, but should be {pairs[at][1]}"
    return Made(variant, f"{count} of {len(pairs)} choices", where)


def prompts_of(model: Model) -> list[Prompt]:
    """Return a chat and a plain prompt that hold much in which something can be wrong."""
    from lockstep.reference.tokenizer.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model.checkpoint.path)
    plain = [Prompt(tokenizer, text=SAID)]
    if "default" not in tokenizer.parts[1].templates:
        return plain
    return [Prompt(tokenizer, messages=[{"role": "user", "content": SAID}]), *plain]


def runs_of(model: Model) -> list[Run]:
    """Return right answers of the reference, each with other settings."""
    draw = np.random.default_rng(1)
    tokens = draw.integers(0, min(model.config.vocab_size, 400), 8).tolist()
    uniforms = draw.random(2 * STEPS + 2).tolist()
    runs = (Run(ReferenceRows(model, tokens), tokens, (), one, uniforms) for one in SETTINGS)
    return [answered(run) for run in runs]


def answered(run: Run) -> Run:
    """Return a run with the answer that the right sampler gives."""
    answer: Sequence[int] = ()
    for _ in range(STEPS):
        asked = Run(run.source, run.tokens, (*answer, -1), run.settings, run.uniforms)
        answer = (*answer, (asked.replayed(()) or [(0, 0)])[-1][0])
    return Run(run.source, run.tokens, answer, run.settings, run.uniforms)
