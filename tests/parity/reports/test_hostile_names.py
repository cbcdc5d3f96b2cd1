"""Names inside a dump can carry nothing into any report. By law: what each format reads in it.

Each test reads a report as its reader does: a parser of XML and of HTML, the rules of GitHub's
runner, and those of code spans. `tests/peers/test_html_report.py` asks a browser.
"""

import json
import re
import unicodedata
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tests.parity.reports.hostile import NAMES, diagnosis, write_dumps

TAGS = {"html", "head", "meta", "link", "title", "style", "script", "body", "a", "header", "p",
        "h1", "h2", "h3", "span", "code", "wbr", "main", "section", "ol", "ul", "li", "div", "dl",
        "dt", "dd", "table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary",
        "figure", "figcaption", "svg", "line", "text", "rect", "footer"}  # fmt: skip
COMMAND = re.compile(r"^::(?P<level>error|notice|warning) title=(?P<title>[^:,]*)::(?P<text>.*)$")


@pytest.fixture(params=["diff", "explain"])
def reports(request, lockstep, tmp_path):
    """Make every report of a hostile result, through the command line; return the texts."""
    result = tmp_path / "result.json"
    if request.param == "diff":
        assert lockstep("diff", *write_dumps(tmp_path), "--json", result).code == 1
    else:
        result.write_text(json.dumps(diagnosis()))
    files = {kind: tmp_path / f"report.{kind}" for kind in ("html", "markdown", "junit")}
    options = [part for kind, path in files.items() for part in (f"--{kind}", path)]
    said = lockstep("report", result, *options, "--github")
    assert (said.code, said.err) == (0, "")
    return {"github": said.out} | {kind: path.read_text() for kind, path in files.items()}


def test_nothing_in_them_steers_a_terminal(reports):
    for kind, text in reports.items():
        bad = {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co")}
        assert bad <= {"\n"}, (kind, bad)


def test_the_page_has_only_the_elements_of_its_own(reports):
    seen = Elements()
    seen.feed(reports["html"])
    assert {name for name, _ in seen.found} <= TAGS
    assert sum(name == "script" for name, _ in seen.found) == 1
    attributes = [pair for _, pairs in seen.found for pair in pairs]
    assert not [name for name, _ in attributes if name.startswith("on") or name in ("style", "src")]
    links = {value for name, value in attributes if name in ("href", "action", "formaction")}
    assert all(re.fullmatch(r"#(tap-\d+|fix)|data:,", link) for link in links), links
    assert "window.hacked=1" in reports["html"], "the names are shown, as text"


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, attrs))


def test_junit_is_xml_with_the_names_as_text(reports):
    suites = ElementTree.fromstring(reports["junit"])
    assert {one.tag for one in suites.iter()} == {
        "testsuites", "testsuite", "testcase", "failure", "system-out"
    }  # fmt: skip
    named = {case.get("name") for case in suites.iter("testcase")}
    assert NAMES[0] in named
    assert int(suites.get("tests")) == len([*suites.iter("testcase")])


def test_a_runner_reads_our_commands_and_no_others(reports):
    lines = reports["github"].splitlines()
    assert 2 <= len(lines) <= 11
    for line in lines:
        found = COMMAND.match(line)
        assert found and "##[" not in line, line
    assert not any(line.startswith(("::", "##[")) for line in reports["markdown"].splitlines())
    assert "##[" not in reports["markdown"]


def test_markdown_has_the_names_in_code_or_escaped(reports):
    text = re.sub(r"`[^`\n]*`", "CODE", reports["markdown"])
    text = re.sub(r"</?(details|summary)>", "", text)
    text = re.sub(r"\\[\\`*_{}\[\]<>!|~&]", "", text)
    assert "`" not in text
    assert not re.search(r"[@<>]|://|www\.|GH-|#1|\]\(|\[", text), text
    rows = [line for line in reports["markdown"].splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} <= {3, 7}, "a cell ends at a bar even within code"
