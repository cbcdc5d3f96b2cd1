"""Witness: transformers' AutoTokenizer, live, on tokenizers that it saved itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as RustTokenizer
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.tokenizer import load_tokenizer

CORPUS = [
    "the quick brown fox, it's 2 + 2 = 4\n\n",
    "  été naïve 😀 def f(x):\n\treturn x",
    "日本語",
]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    *("", " ", "  ", "\n", "\n\n  \n", "\t", "a\nb", r"a\nb", "a\r\nb", " lead", "trail ", "\0"),
    *("e\u0301", "é", "ﬁ", "2\u00b2", "👩\u200d👩\u200d👧", "🇫🇷", "日本語", "مرحبا", "\u202eab"),
    *("it's I'LL", "1234567", "x" * 500, " " * 50 + "x", "\u00a0\u3000", "if x:\n    return x\n"),
    *("<|im_start|>user\nhi<|im_end|>", "a<think>b</think>c", "<|im_end", "<s>", "</s> x", "▁a"),
    "a\ufffdb\ufffd",
]
# ChatML with reasoning and tools, in the idioms that published templates use.
THINKING = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + "\\n" }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == 'user' and message.content is string %}
        {%- set ns.searching = false %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n' ~ (call.arguments | tojson(indent=2)) ~ '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
TEMPLATES = {
    "thinking": THINKING,
    "llama": (
        "{{ bos_token }}{% set date_string = date_string or 'today' %}"
        "{% for m in messages %}\n  {% if m.role == 'tool' %}{% continue %}{% endif %}\n"
        "[{{ m['role'] | upper }}|{{ date_string }}] {{ m['content'] | trim }}{{ eos_token }}\n"
        "{% endfor %}\n"
    ),
    "strict": (
        "{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{- raise_exception('roles must alternate') }}{%- endif %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{%- endfor %}{{ tools is none }}{{ pad_token }}{{ unk_token }}"
    ),
}


def said(role: str, content: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CHATS = [
    [said("user", "hi")],
    [said("user", " a\n"), said("assistant", "<think>x</think>\n\nb"), said("user", "<b>'é\u2028")],
    [said("user", "2+2?"), said("assistant", None, tool_calls=[]), said("user", "x")],
    [said("user", "q"), said("assistant", tool_calls=[{"arguments": {"é": 1}}]), said("tool", "4")],
]
VARIABLES = [
    {},
    {"add_generation_prompt": False},
    {"enable_thinking": False, "date_string": "26 Jul 2024"},
    {"tools": [{"name": "add", "description": "é <a>"}]},
]


def byte_level() -> RustTokenizer:
    tokenizer = RustTokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = BpeTrainer(
        vocab_size=340, initial_alphabet=alphabet, special_tokens=specials, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ("<think>", "</think>")])
    return tokenizer


def sentencepiece(*, prefix: bool) -> RustTokenizer:
    """As Llama 2 with `prefix`, as Gemma without."""
    specials = ["<unk>", "<s>", "</s>"]
    tokens = specials + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += ["▁", *"abcdefghijklmnopqrstuvwxyz", "▁t", "▁th", "▁the", "▁▁"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "▁")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = RustTokenizer(model)
    steps: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(undo + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(specials)
    return tokenizer


FAMILIES = {
    "qwen": (byte_level, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
    "llama": (
        lambda: sentencepiece(prefix=True),
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    ),
    "gemma": (
        lambda: sentencepiece(prefix=False),
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make, tokens = FAMILIES[request.param]
    path = tmp_path_factory.mktemp(request.param)
    saved = PreTrainedTokenizerFast(
        tokenizer_object=make(), clean_up_tokenization_spaces=False, **tokens
    )
    saved.save_pretrained(path)
    return path


def test_ids_and_text_are_those_of_transformers(folder: Path) -> None:
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.size == len(theirs)
    assert ours.eos_token_ids == {theirs.eos_token_id}
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
        stream = ours.stream()
        pieces = [*(stream.push(number) for number in ids), stream.finish()]
        assert "".join(pieces) == ours.decode(ids), text
        assert [ours.token(number) for number in ids] == theirs.convert_ids_to_tokens(ids)


@pytest.mark.parametrize("form", ["file", "config"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_are_rendered_as_transformers_does(folder: Path, name: str, form: str) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    theirs.chat_template = TEMPLATES[name]
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    theirs.save_pretrained(folder, save_jinja_files=form == "file")
    assert (folder / "chat_template.jinja").exists() == (form == "file")
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for messages in CHATS:
        for given in VARIABLES:
            variables = {"add_generation_prompt": True, **given}
            try:
                text = theirs.apply_chat_template(messages, tokenize=False, **variables)
            except Exception as error:
                with pytest.raises(InputError) as caught:
                    ours.render_chat(messages, **variables)
                assert str(error)[:40] in str(caught.value)
                continue
            assert ours.render_chat(messages, **variables) == text
    ids = theirs.apply_chat_template(CHATS[0], return_dict=False, add_generation_prompt=True)
    assert ours.encode_chat(CHATS[0]) == ids
