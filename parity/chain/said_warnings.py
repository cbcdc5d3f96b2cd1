"""What makes the words of a port useless: a line each, none where all is well."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.parity.chain.said import Said, said_by, temperature_of
from lockstep.parity.cli.output import counted
from lockstep.parity.dumps.dump import Dump
from lockstep.reference.checkpoint.errors import show_names

KEYS = {
    "format", "version", "tokens", "dtype", "decoded", "model", "backend", "adapter", "prompt",
    "chat", "messages", "step_lengths", "batch", "padding", "batch_decoded", "generated",
    "uniforms", "sampling", "library", "rotary_neighbours",
}  # fmt: skip


def words_of(dump: Dump) -> list[str]:
    """Return a line for each thing that will stand in the way of judging ids and choices."""
    said = said_by(dump)
    lines = [*about_prompt(said, has_tensors=bool(dump.shapes)), *about_choices(said)]
    if said.chooses and not dump.shapes and "dtype" not in dump.about:
        lines.append("no dtype: its choices are judged as those of a port in float32")
    odd = sorted(set(dump.about) - KEYS)
    if odd and not dump.shapes:
        lines.append(f"no key of the format, so not read: {show_names(odd)}")
    return lines


def about_prompt(said: Said, *, has_tensors: bool) -> Iterator[str]:
    if has_tensors:
        return  # a dump of tensors alone is a good one
    if not said.tokens:
        yield "no tokens: nothing can be judged without the ids of the prompt"
    elif not said.has_prompt and not said.answer:
        yield "neither prompt nor decoded: there is nothing that the ids can be judged by"


def about_choices(said: Said) -> Iterator[str]:
    if said.settings is not None and not said.answer:
        yield "sampling is said, but not what was chosen: decoded or generated"
    drawn = temperature_of(said.settings) > 0
    if drawn and said.answer and said.uniforms is None:
        yield "drawn at a temperature, and no uniforms: choices are judged by likelihood alone"
    if said.uniforms is not None and len(said.uniforms) < len(said.answer):
        yield f"{counted(said.uniforms, 'uniform')} for {counted(said.answer, 'choice')}"
