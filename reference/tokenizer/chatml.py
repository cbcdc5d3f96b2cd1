"""ChatML, for a model whose files have no template but whose tokenizer has ChatML's tokens."""

from __future__ import annotations

from dataclasses import replace

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.settings import ChatTemplate
from lockstep.reference.tokenizer.tokenizer import Tokenizer

START, END = "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def with_template(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer itself if it has a chat template, else one that has ChatML.

    Its end of a turn then ends a text, too.
    Raises: InputError if it has neither a template nor one token for each of ChatML's marks.
    """
    backend, settings = tokenizer.parts
    if "default" in settings.templates:
        return tokenizer
    ids = [backend.token_to_id(mark) for mark in (START, END)]
    if None in ids:
        what = f"no chat template, and no tokens {START} and {END} for ChatML: give it plain text"
        raise InputError(settings.path, what)
    templates = settings.templates | {"default": ChatTemplate(CHATML, settings.path)}
    found = Tokenizer(tokenizer.path, backend, replace(settings, templates=templates))
    found.eos_token_ids |= {int(ids[1] or 0)}
    return found


def knows_thinking(tokenizer: Tokenizer) -> bool:
    """Whether the template asks for `enable_thinking`."""
    return "enable_thinking" in tokenizer.parts[1].templates["default"].source
