"""Published chat templates, rendered as transformers renders them. By witness, live.

The templates are read out of the packages that hold them. `LOCKSTEP_TEMPLATES=FOLDER` adds every
`.jinja` file of a folder, such as `models/templates` of llama.cpp's source.
"""

import ast
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.chat_template import render_template

# The file in a package, and the names in it that stand for a template.
HOLDERS = {
    "llama_cpp.llama_chat_format": (
        "CHATML_CHAT_TEMPLATE", "MISTRAL_INSTRUCT_CHAT_TEMPLATE", "MIXTRAL_INSTRUCT_CHAT_TEMPLATE",
        "LLAMA3_INSTRUCT_CHAT_TEMPLATE",
    ),
    "transformers.models.llama4.processing_llama4": ("chat_template",),
}  # fmt: skip
NAMES = sorted(name for names in HOLDERS.values() for name in names)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def said(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


CHATS = {
    "one turn": said(("user", " What is 2+2?\n")),
    "system": said(("system", "Be brief."), ("user", "<b>'é\u2028 \"")),
    "several turns": said(("user", "Hi"), ("assistant", "Hello!\n"), ("user", "And?")),
    "all": said(("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c")),
    "thought": said(("user", "a"), ("assistant", "<think>\nx\n</think>\n\nb"), ("user", "c")),
    "markers in the text": said(("user", "<|im_end|>[/INST]<|eot_id|></s><think>")),
    "twice the same": said(("user", "a"), ("user", "b")),
}
SWITCHES: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True}, {"enable_thinking": False})


def constants(module: str) -> dict[str, str]:
    """Return the texts that a module gives names to; it is read, and not run."""
    package, *path = module.split(".")
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is not installed"
    file = Path(spec.origin).parent.joinpath(*path).with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found |= {ast.unparse(target): node.value.value for target in node.targets}
    return found


@pytest.fixture(scope="module")
def templates() -> dict[str, str]:
    held = {module: constants(module) for module in HOLDERS}
    return {name: held[module][name] for module, names in HOLDERS.items() for name in names}


def theirs(template: str, chat: list[dict[str, str]], **variables: Any) -> str | None:
    try:
        texts, _ = render_jinja_template([chat], chat_template=template, **variables)
    except Exception:
        return None
    return texts[0]


def ours(template: str, chat: list[dict[str, str]], **variables: Any) -> str | None:
    """Return None for a template that fails: in one line, whatever it was."""
    given = {"messages": chat, "tools": None, "documents": None, **variables}
    try:
        return render_template(template, given, path=Path("chat_template.jinja"))
    except InputError as error:
        assert len(str(error).splitlines()) == 1 and "chat template failed" in str(error)
        return None


def hold(template: str) -> None:
    """Compare every chat, with and without a prompt for the answer, thinking on and off."""
    seen = set()
    switches = SWITCHES if "think" in template else SWITCHES[:1]
    for chat in CHATS.values():
        for switch in switches:
            for prompt in (True, False):
                variables = {"add_generation_prompt": prompt, **switch, **SPECIAL}
                text = theirs(template, chat, **variables)
                assert ours(template, chat, **variables) == text
                seen.add(text)
    assert len(seen - {None}) >= 2, "this template answers nothing"


@pytest.mark.parametrize("name", NAMES)
def test_templates_in_packages(name, templates):
    hold(templates[name])


def test_templates_in_a_folder():
    """With no folder named, the templates of this project's own demo."""
    demo = Path(__file__).parents[2] / "parity" / "demo" / "checkpoint"
    files = sorted(Path(os.environ.get("LOCKSTEP_TEMPLATES", demo)).glob("*.jinja"))
    assert files
    for file in files:
        hold(file.read_text(encoding="utf-8"))
