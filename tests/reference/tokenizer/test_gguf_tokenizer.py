"""Tokenizers out of the metadata of GGUF files: what is laid down by hand, and by witness."""

from pathlib import Path

import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests import gguf_bytes as g

ROOT = Path(__file__).parents[3]
WITNESS = ROOT / "tests" / "witnesses" / "gguf" / "qwen3_tied.gguf"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
HARD = (
    *("hello world", "  leading", "trailing  ", "a\nb\n\n c\t\td", "\\n is no newline", "\r\n x"),
    *(
        "e\u0301 is é",
        "ﬁ 1234 56",
        "😀 👨‍👩‍👧",
        "日本語",
        "<|im_start|>user\nhi<|im_end|>\n",
        " <|im_end|> ",
    ),
    *("It's we'LL", "", " ", "a" * 60, "$1,000.00 + x^2 = ~|", "\u00a0x", "мир"),
)


def tokenizer(tmp_path: Path, kind: str, tokens: list[str], *more: bytes, pre: str = "gpt-2"):
    pairs = [
        g.pair("tokenizer.ggml.model", g.STRING, kind),
        g.pair("tokenizer.ggml.pre", g.STRING, pre),
        g.array("tokenizer.ggml.tokens", g.STRING, tokens),
    ]
    path = tmp_path / "x.gguf"
    path.write_bytes(g.container([*pairs, *more], [g.info("x", [8])], bytes(32)))
    return load_tokenizer(path)


def merges(*pairs: str) -> bytes:
    return g.array("tokenizer.ggml.merges", g.STRING, pairs)


def kinds(*found: int) -> bytes:
    return g.array("tokenizer.ggml.token_type", g.I32, found)


def number(name: str, value: int) -> bytes:
    return g.pair(f"tokenizer.ggml.{name}_token_id", g.U32, value)


def flag(name: str, value: int) -> bytes:
    return g.pair(f"tokenizer.ggml.{name}", g.BOOL, value)


@pytest.mark.parametrize("text", HARD)
def test_the_file_of_a_folder(text):
    """By witness: the demo's tokenizer.json, written into a file with the gguf package."""
    found, theirs = load_tokenizer(WITNESS), load_tokenizer(ROOT / "parity/demo/checkpoint")
    assert found.encode(text) == theirs.encode(text)
    assert found.decode(theirs.encode(text)) == theirs.decode(theirs.encode(text))


def test_rows_without_a_token():
    """By witness: the model has 704 rows, its tokenizer 700 tokens."""
    found, theirs = load_tokenizer(WITNESS), load_tokenizer(ROOT / "parity/demo/checkpoint")
    assert found.size == theirs.size == 700
    assert found.decode([*theirs.encode("hi"), 703]) == "hi"


def test_bytes_are_letters(tmp_path):
    """By hand: Ġ is a space, and merges join in their order."""
    tokens = ["a", "b", "Ġ", "ab", "Ġab"]
    found = tokenizer(tmp_path, "gpt2", tokens, merges("a b", "Ġ ab"))
    assert found.encode("ab ab") == [3, 4]
    assert found.decode([3, 4]) == "ab ab"
    other = tokenizer(tmp_path, "gpt2", [*tokens, "Ġa"], merges("Ġ a", "a b", "Ġ ab"))
    assert other.encode("ab ab") == [3, 5, 1]


def test_a_merge_that_begins_with_a_space(tmp_path):
    """By hand: as llama.cpp, the space that parts is never the first."""
    found = tokenizer(tmp_path, "gpt2", ["a", " ", " a"], merges("  a"))
    assert found.size == 3


def test_special_tokens(tmp_path):
    """By hand: control tokens are found in a text and not shown; user-defined ones are shown."""
    tokens = ["a", "<s>", "</s>", "<x>"]
    more = [kinds(NORMAL, CONTROL, CONTROL, USER), number("bos", 1), number("eos", 2), merges()]
    found = tokenizer(tmp_path, "gpt2", tokens, *more)
    assert found.encode("a<s>a<x>") == [0, 1, 0, 3]
    assert found.decode([1, 0, 3, 2]) == "a<x>"
    assert found.eos_token_ids == {2}


@pytest.mark.parametrize(
    "pre, more, expected",
    [
        ("gpt-2", [], [0]),
        ("qwen2", [], [0]),
        ("llama-bpe", [], [1, 0]),
        ("llama-bpe", [flag("add_bos_token", 0)], [0]),
        ("gpt-2", [flag("add_bos_token", 1), flag("add_eos_token", 1)], [1, 0, 2]),
    ],
)
def test_what_stands_around_a_prompt(tmp_path, pre, more, expected):
    """By hand: Llama 3 begins with BOS unless the file says not to. A chat gets no second one."""
    shared = [kinds(NORMAL, CONTROL, CONTROL), number("bos", 1), number("eos", 2), merges()]
    shared.append(
        g.pair("tokenizer.chat_template", g.STRING, "{{ bos_token }}{{ messages[0].content }}")
    )
    found = tokenizer(tmp_path, "gpt2", ["a", "<s>", "</s>"], *shared, *more, pre=pre)
    assert found.encode("a") == expected
    assert found.encode_chat([{"role": "user", "content": "a"}]) == [1, 0]


def test_how_digits_are_cut(tmp_path):
    """By hand: one by one for Qwen, by threes for Llama 3, together for GPT-2."""
    tokens = ["1", "11", "111", "1111"]
    more = [merges("1 1", "11 1", "11 11", "111 1"), flag("add_bos_token", 0)]
    found = {
        pre: tokenizer(tmp_path, "gpt2", tokens, *more, pre=pre).encode("1111")
        for pre in ("gpt-2", "qwen2", "deepseek-r1-qwen", "llama-bpe", "default")
    }
    assert found == {
        "gpt-2": [3],
        "qwen2": [0, 0, 0, 0],
        "deepseek-r1-qwen": [0, 0, 0, 0],
        "llama-bpe": [2, 0],
        "default": [2, 0],
    }


def test_whole_words_of_llama_3(tmp_path):
    """By hand: a piece that is a token is one, though no merge leads there."""
    more = [merges(), flag("add_bos_token", 0)]
    assert tokenizer(tmp_path, "gpt2", ["a", "b", "ab"], *more, pre="llama-bpe").encode("ab") == [2]
    assert tokenizer(tmp_path, "gpt2", ["a", "b", "ab"], *more, pre="qwen2").encode("ab") == [0, 1]


def test_composed_letters(tmp_path):
    """By hand: Qwen's text is normalised to NFC, Llama's is not."""
    tokens = ["Ã", "©", "Ã©", "e", "Ì", "ģ"]
    more = [merges("Ã ©"), flag("add_bos_token", 0)]
    assert tokenizer(tmp_path, "gpt2", tokens, *more, pre="qwen2").encode("e\u0301") == [2]
    assert tokenizer(tmp_path, "gpt2", tokens, *more, pre="llama-bpe").encode("e\u0301") == [
        3,
        4,
        5,
    ]


def scored(tmp_path: Path, *more: bytes):
    """Make a tokenizer of scores: 'ab' goes before 'bc', and every byte has a token."""
    tokens = [
        "<unk>",
        "<s>",
        "▁",
        "a",
        "b",
        "c",
        "ab",
        "bc",
        "▁ab",
        *(f"<0x{n:02X}>" for n in range(256)),
    ]
    scores = [0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0, *[0.0] * 256]
    shared = [
        g.array("tokenizer.ggml.scores", g.F32, scores),
        kinds(UNKNOWN, CONTROL, *[NORMAL] * 7, *[BYTE] * 256),
        *(number("bos", 1), number("unknown", 0)),
    ]
    return tokenizer(tmp_path, "llama", tokens, *shared, *more)


def test_scores(tmp_path):
    """By hand: a space goes before the text, the best score joins first, bytes are the rest."""
    found = scored(tmp_path)
    assert found.encode("abc") == [1, 8, 5]
    assert found.encode("bc a") == [1, 2, 7, 2, 3]
    assert found.encode("é") == [1, 2, 9 + 0xC3, 9 + 0xA9]
    assert found.decode([1, 8, 5, 2, 9 + 0xC3, 9 + 0xA9]) == "abc é"


def test_scores_without_a_space_in_front(tmp_path):
    found = scored(tmp_path, flag("add_space_prefix", 0))
    assert found.encode("abc") == [1, 6, 5]
    assert found.decode([8]) == " ab"


def test_a_byte_is_missing(tmp_path):
    more = [g.array("tokenizer.ggml.scores", g.F32, [0.0]), kinds(BYTE), flag("add_bos_token", 0)]
    with pytest.raises(InputError, match="byte_fallback needs the token '<0x01>'"):
        tokenizer(tmp_path, "llama", ["<0x00>"], *more)


def test_chat_templates(tmp_path):
    """By hand: the one without a name is the default, another is for tools."""
    more = [
        merges(),
        g.pair("tokenizer.chat_template", g.STRING, "plain {{ messages[0].content }}"),
        g.pair("tokenizer.chat_template.tool_use", g.STRING, "tools {{ tools|length }}"),
    ]
    found = tokenizer(tmp_path, "gpt2", ["a"], *more)
    chat = [{"role": "user", "content": "hi"}]
    assert found.render_chat(chat) == "plain hi"
    assert found.render_chat(chat, tools=[{}]) == "tools 1"
    with pytest.raises(InputError, match="no chat template"):
        tokenizer(tmp_path, "gpt2", ["a"], merges()).render_chat(chat)


@pytest.mark.parametrize(
    "template", ["{{ ''.__class__ }}", "{% include '/etc/passwd' %}", "{{ 10**5000000 }}", "{% if"]
)
def test_hostile_templates(tmp_path, template):
    """By law (G31): the same child process as for any other template."""
    more = [merges(), g.pair("tokenizer.chat_template", g.STRING, template)]
    found = tokenizer(tmp_path, "gpt2", ["a"], *more)
    with pytest.raises(InputError, match=r"x\.gguf: chat template"):
        found.render_chat([{"role": "user", "content": "hi"}])
