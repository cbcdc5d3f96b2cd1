"""Truth by hand: where special tokens and chat templates come from."""

from __future__ import annotations

import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.settings import read_settings


def named(*pairs: tuple[object, object]) -> dict:
    return {"chat_template": [{"name": name, "template": text} for name, text in pairs]}


def test_both_spellings_of_special_tokens(write_folder) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None, "x": 1}
    settings = read_settings(write_folder(config=config))
    assert settings.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_the_length_that_means_no_limit(write_folder) -> None:
    """By hand: the one integer over 64 bits that published configs hold, int(1e30)."""
    config = {"model_max_length": int(1e30), "eos_token": "x"}
    assert read_settings(write_folder(config=config)).special_tokens == {"eos_token": "x"}
    with pytest.raises(InputError, match="integer of 31 digits is out of range"):
        read_settings(write_folder(config={"other": int(1e30)}))


def test_templates_of_the_config(write_folder) -> None:
    templates = read_settings(write_folder(config={"chat_template": "one"})).templates
    assert {name: one.source for name, one in templates.items()} == {"default": "one"}
    both = named(("default", "one"), ("tool_use", "two"))
    templates = read_settings(write_folder(config=both)).templates
    assert {name: one.source for name, one in templates.items()} == {
        "default": "one",
        "tool_use": "two",
    }


def test_the_template_file_goes_first(write_folder) -> None:
    folder = write_folder(config={"chat_template": "from the config"})
    file = folder / "chat_template.jinja"
    file.write_bytes(b"from the file\r\nline two")
    template = read_settings(folder).templates["default"]
    assert (template.source, template.path) == ("from the file\nline two", file)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"eos_token": 3}, "eos_token must be text, not 3"),
        ({"eos_token": {"content": 3}}, "eos_token must be text"),
        ({"chat_template": 3}, "chat_template must be text or a list, not 3"),
        ({"chat_template": [3]}, "entry must have name and template: 3"),
        (named(("default", 3)), "entry must have name and template"),
        (named(("default", "a"), ("default", "b")), "two templates named 'default'"),
        ({"chat_template": "x" * (1 << 20) + "x"}, "over the limit of 1048576 bytes"),
        ([], "must be a JSON object"),
    ],
)
def test_what_is_refused(write_folder, config: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_settings(write_folder(config=config))
    assert message in str(caught.value)


def test_a_template_file_that_is_not_text(write_folder) -> None:
    folder = write_folder()
    (folder / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match=r"chat template is not UTF-8 \(byte 2\)"):
        read_settings(folder)
