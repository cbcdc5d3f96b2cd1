"""The Markdown of hostile results, as a renderer makes a page of it. Witness: markdown-it-py."""

import json
import re
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from lockstep.parity.cli import main
from tests.parity.reports.hostile import NAMES, diagnosis, write_dumps

OURS = {"h3", "p", "strong", "code", "ol", "ul", "li", "details", "summary", "table", "thead",
        "tbody", "tr", "th", "td"}  # fmt: skip


class Rendered(HTMLParser):
    """The elements of a page, and its text in and outside of code."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.code, self.plain, self.inside = set(), "", "", False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.inside |= tag == "code"

    def handle_endtag(self, tag):
        self.inside &= tag != "code"

    def handle_data(self, data):
        if self.inside:
            self.code += data + "\n"
        else:
            self.plain += data


@pytest.mark.parametrize("kind", ["diff", "explain"])
def test_a_renderer_makes_only_our_elements(tmp_path, kind):
    result, path = tmp_path / "result.json", tmp_path / "report.md"
    if kind == "diff":
        main(["diff", *map(str, write_dumps(tmp_path)), "--json", str(result)])
    else:
        result.write_text(json.dumps(diagnosis()))
    assert main(["report", str(result), "--markdown", str(path)]) == 0
    renderer = MarkdownIt("commonmark", {"html": True}).enable("table")
    page = Rendered(renderer.render(path.read_text(encoding="utf-8")))
    assert page.tags <= OURS
    assert NAMES[0] in page.code, "names are shown, in code"
    assert not re.search(r"@\w|#\d|://|www\.|GH-", page.plain), "nothing that GitHub links"
