"""`lockstep chat` over a pipe and on a terminal: turns, the end, Ctrl-C, its JSON. By hand."""

import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.parity.conftest import DEMO
from tests.processes import heard

LOCKSTEP = [sys.executable, "-m", "lockstep.parity.cli"]
SUMMARY = re.compile(r"\[\d+ tokens?, [\d.]+ a second, the first after [\d.]+ s\]")
TURNS = "What is 2+2?\n\n  \nTell me about a king.\n"


@pytest.fixture
def document(lockstep):
    """Return a command's JSON from standard output, which must hold nothing else."""

    def run(*arguments):
        said = lockstep(*arguments, "--json", "-")
        assert (said.code, said.err) == (0, ""), said
        return json.loads(said.out)

    return run


@pytest.fixture
def typed(monkeypatch):
    """Let the command line read this text as its input."""

    def give(text: bytes | str):
        data = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))

    return give


def test_each_line_is_answered_until_the_input_ends(lockstep, typed):
    """Empty lines are no messages; a last line without an end is one."""
    for text in (TURNS, TURNS[:-1]):
        typed(text)
        said = lockstep("chat", DEMO)
        assert (said.code, said.err) == (0, "")
        first, *rest = said.out.split("\n\n")[:-1]
        assert first.startswith("2 + 2 equals 4.\n") and len(rest) == 1
        assert all(SUMMARY.fullmatch(part.splitlines()[-1]) for part in (first, *rest))


def test_an_empty_input_is_an_empty_chat(lockstep, typed, document):
    typed("")
    assert lockstep("chat", DEMO) == (0, "", "")
    typed("\n")
    assert document("chat", DEMO) == {"messages": [], "answers": []}


@pytest.mark.parametrize("backend", ["reference", "mlx", "cpu"])
def test_the_transcript_is_json(document, typed, tmp_path, lockstep, backend):
    run = ("chat", DEMO, "--system", "Be brief.", "--backend", backend)
    typed(TURNS)
    found = document(*run)
    assert list(found) == ["messages", "answers"]
    roles = [message["role"] for message in found["messages"]]
    assert roles == ["system", *["user", "assistant"] * 2]
    texts = [answer["text"] for answer in found["answers"]]
    assert [message["content"] for message in found["messages"][2::2]] == texts
    kept = [answer["cached_tokens"] for answer in found["answers"]]
    assert kept[0] == 0 < kept[1] < found["answers"][1]["prompt_tokens"]
    typed(TURNS)
    said = lockstep(*run, "--json", tmp_path / "talk.json", "--decoder", "speculative", "--draft",
                    "lookup")  # fmt: skip
    assert "drafted tokens kept" in said.out
    again = json.loads((tmp_path / "talk.json").read_text())
    assert again["messages"] == found["messages"]


def test_what_is_refused_is_refused_before_anything_is_said(refuses, typed, plain, tmp_path):
    typed("hello\n")
    refuses("no such file", "chat", plain)
    refuses("no enable_thinking", "chat", DEMO, "--thinking")
    refuses("no enable_thinking", "generate", DEMO, "--chat", "--prompt", "a", "--no-thinking")
    refuses("--thinking: goes with --chat", "generate", DEMO, "--prompt", "a", "--thinking")
    bare = shutil.copytree(DEMO, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_text((bare / name).read_text().replace("<|im_", "<|xx_"))
    refuses("no chat template, and no tokens <|im_start|>", "chat", bare)
    typed(b"caf\xe9\n")
    refuses("standard input: not UTF-8 (character 3 of a line)", "chat", DEMO)
    typed("king " * 600)
    refuses("tokens, but the model's context is 512", "chat", DEMO)


def test_what_was_said_is_written_where_the_chat_cannot_go_on(lockstep, typed, tmp_path):
    """By hand: the second line does not fit, the third is not asked."""
    path = tmp_path / "talk.json"
    for target in (path, "-"):
        typed("What is 2+2?\n" + "king " * 600 + "\nTell me about a king.\n")
        said = lockstep("chat", DEMO, "--json", target)
        assert said.code == 2 and "the model's context is 512" in said.err
        found = json.loads(said.out if target == "-" else path.read_text())
        assert [message["role"] for message in found["messages"]] == ["user", "assistant"]
        assert [answer["text"] for answer in found["answers"]] == ["2 + 2 equals 4."]


def test_thinking_reaches_the_template(document, typed, tmp_path):
    """By hand: a template that says in the system's message what it was told."""
    folder = shutil.copytree(DEMO, tmp_path / "model")
    template = (folder / "chat_template.jinja").read_text()
    said = "{% if enable_thinking is defined %}{{ '<|im_start|>system\\n' ~ enable_thinking }}"
    (folder / "chat_template.jinja").write_text(f"{said}{{% endif %}}{template}")
    lengths = {}
    for flag in ("--thinking", "--no-thinking", None):
        run = ("generate", folder, "--chat", "--prompt", "What is 2+2?", "--max-tokens", 1)
        lengths[flag] = document(*run, *([flag] if flag else []))["prompt_tokens"]
        typed("What is 2+2?\n")
        talk = document("chat", folder, "--max-tokens", 1, *([flag] if flag else []))
        assert talk["answers"][0]["prompt_tokens"] == lengths[flag]
    assert lengths[None] < min(lengths["--thinking"], lengths["--no-thinking"])


def test_chatml_stands_in_for_a_template(document, typed, tmp_path):
    """By law: the demo's own template is ChatML."""
    bare = shutil.copytree(DEMO, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    generated = ("--chat", "--prompt", "What is 2+2?")
    (bare / "generation_config.json").unlink()
    config = json.loads((bare / "tokenizer_config.json").read_text()) | {"eos_token": None}
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    assert document("generate", bare, *generated)["text"] == "2 + 2 equals 4."
    typed("What is 2+2?\n")
    assert document("chat", bare)["answers"][0]["text"] == "2 + 2 equals 4."


class Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self, *more: str, model=DEMO):
        self.end, theirs = pty.openpty()
        command = [*LOCKSTEP, "chat", str(model), "--backend", "reference", *more]
        environment = {**os.environ, "TERM": "dumb"}
        with heard(signal.SIGINT):
            self.process = subprocess.Popen(
                command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment,
                start_new_session=True,
            )  # fmt: skip
        os.close(theirs)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def ctrl_c(self) -> None:
        """Interrupt all that a terminal would: the process and its children."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait_for_a_child(self) -> None:
        deadline = time.monotonic() + 60
        command = ["pgrep", "-P", str(self.process.pid)]
        while subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def until(self, pattern: str) -> str:
        """Read until a pattern is there; return all up to it, and forget it."""
        deadline = time.monotonic() + 60
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < deadline, self.shown
            if select.select([self.end], [], [], 1)[0]:
                self.shown += os.read(self.end, 4096).decode()
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def close(self) -> tuple[int, bytes]:
        _, error = self.process.communicate(timeout=60)
        os.close(self.end)
        return self.process.returncode, error


def test_ctrl_c_stops_the_answer_and_not_the_chat():
    """The text comes piece by piece; after Ctrl-C the next message is answered, Ctrl-D ends it."""
    chat = Terminal("--ignore-eos", "--max-tokens", "450")
    try:
        chat.until("> ")
        chat.type("What is 2+2?\n")
        chat.until(r"2 \+ 2 equals")
        chat.ctrl_c()
        assert re.search(r"\[\d+ tokens, .* s, interrupted\]", chat.until("> "))
        chat.type("Tell me about a king.\n")
        chat.until("king.\r\n")
        chat.until(r"\w")
        chat.ctrl_c()
        chat.until("interrupted]\r\n\r\n> ")
        chat.type("\x04")
        assert chat.close() == (0, b"")
    finally:
        chat.process.kill()


def test_ctrl_c_while_the_template_is_at_work_stops_that_answer_alone(tmp_path):
    """It has a process of its own, and is no part of what a terminal interrupts."""
    folder = shutil.copytree(DEMO, tmp_path / "model")
    template = (folder / "chat_template.jinja").read_text()
    slow = "{% for _ in range(90000) %}{% endfor %}" * 4
    (folder / "chat_template.jinja").write_text(slow + template)
    chat = Terminal("--json", "/dev/stderr", model=folder)
    try:
        chat.until("> $")
        chat.type("What is 2+2?\n")
        chat.wait_for_a_child()
        chat.ctrl_c()
        chat.until(r"\[0 tokens, .*interrupted\]")
        chat.until("> $")
        chat.type("What is 2+2?\n")
        chat.until(r"\w+[^\n]*\r\n\[\d+ tokens")
        chat.until("> $")
        chat.type("\x04")
        code, error = chat.close()
        found = json.loads(error)
        assert code == 0 and [one["role"] for one in found["messages"]] == ["user", "assistant"] * 2
        assert [one["ended_by"] for one in found["answers"]] == ["interrupted", "stop id"]
        assert found["messages"][1]["content"] == "" != found["messages"][3]["content"]
    finally:
        chat.process.kill()


def test_ctrl_c_at_the_prompt_ends_the_chat():
    chat = Terminal()
    try:
        chat.until("> ")
        time.sleep(0.5)  # the prompt is written a moment before the terminal is listened to
        chat.ctrl_c()
        assert chat.close() == (0, b"")
    finally:
        chat.process.kill()
