"""The page of a result, in headless Chromium: what a reader sees, and does with a keyboard.

Witness: Chromium, with its own console, network log, computed colours and pictures. Fails where it
is not installed.
"""

import json
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from lockstep import fast
from lockstep.parity.cli import main
from lockstep.parity.dumps.trace_file import TraceFile
from tests.browser import Browser
from tests.parity.reports.hostile import NAMES, diagnosis, write_dumps

MODEL = Path(__file__).parents[1] / "witnesses/gemma4/sparse"
TOKENS = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]
READABLE = 4.5  # contrast of text with what is behind it, as WCAG 2 asks of AA
WIDTHS, THEMES = (390, 1280), (False, True)
# Every element with text of its own, with its colour and the colour behind it, as r, g, b, a.
COLOURS = """
const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const found = parse(getComputedStyle(node).backgroundColor);
    if (found.length === 3 || found[3] > 0) return found;
  }
  return null;
};
return [...document.querySelectorAll("body *")].filter((node) => node.checkVisibility()
  && [...node.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim()))
  .map((node) => [node.tagName + "." + node.getAttribute("class"),
    parse(node instanceof SVGElement ? getComputedStyle(node).fill : getComputedStyle(node).color),
    behind(node)]);
"""


@pytest.fixture(scope="module")
def browser():
    with Browser() as window:
        window.ask("POST", "/url", {"url": "about:blank"})
        yield window


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Write the pages of `explain`, `diff` with and without a model, and `check`."""
    folder = tmp_path_factory.mktemp("pages")
    port = Path(shutil.copytree(MODEL, folder / "port"))
    config = json.loads((port / "config.json").read_text())
    config["text_config"]["final_logit_softcapping"] = None
    config["text_config"]["rope_parameters"]["sliding_attention"]["rope_theta"] = 1e4
    (port / "config.json").write_text(json.dumps(config))
    for name, model in (("left", MODEL), ("right", port)):
        with TraceFile(folder / f"{name}.safetensors", tokens=TOKENS) as dump:
            fast.load(model, backend="cpu").forward([TOKENS], trace=dump)
    left, right = folder / "left.safetensors", folder / "right.safetensors"
    made = {
        "explain": page(folder, "explain", MODEL, right),
        "diff": page(folder, "diff", left, right, "--model", MODEL),
        "plain": page(folder, "diff", left, right),
        "check": page(folder, "check", MODEL, "--tokens", "3,14,15", "--decode", "1"),
    }
    return made


def page(folder, command, *arguments):
    """Run a command and the report of its result, as a person would; return the page's path."""
    result = folder / f"{command}{len(arguments)}.json"
    main([command, *map(str, arguments), "--json", str(result)])
    path = result.with_suffix(".html")
    assert main(["report", str(result), "--html", str(path)]) == 0
    return path


def opened(browser, path, width=1280, **kind):
    browser.show(width, **kind)
    browser.messages(), browser.requests()
    browser.open(path)


@pytest.mark.parametrize("dark", THEMES, ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["explain", "diff", "plain", "check"])
def test_a_page_shows_all_and_asks_for_nothing(browser, pages, name, width, dark):
    opened(browser, pages[name], width, dark=dark)
    assert browser.messages() == []
    asked = [url for url in browser.requests() if not url.startswith("data:")]
    assert asked == [pages[name].as_uri()]
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.querySelectorAll('main .map').length") >= 2
    assert shown_share(browser.picture()) > 0.01
    browser.run("document.querySelectorAll('details').forEach((one) => one.open = true)")
    assert browser.run("return document.documentElement.scrollWidth") <= width


def shown_share(png):
    """Return the share of bytes that differ from the pixel before or above: 0 of one colour."""
    data, place = b"", 8
    while place < len(png):
        size, kind = struct.unpack(">I4s", png[place : place + 8])
        data += png[place + 8 : place + 8 + size] if kind == b"IDAT" else b""
        place += size + 12
    return np.count_nonzero(np.frombuffer(zlib.decompress(data), np.uint8)) / (1280 * 800)


@pytest.mark.parametrize("name", ["explain", "plain", "check"])
def test_all_text_is_readable_in_both_themes(browser, pages, name):
    seen = {}
    for dark in THEMES:
        opened(browser, pages[name], dark=dark)
        browser.run("document.querySelectorAll('details').forEach((one) => one.open = true)")
        found = browser.run(COLOURS)
        assert len(found) > 100
        faint = {(kind, contrast(ink, paper)) for kind, ink, paper in found
                 if not contrast(ink, paper) >= READABLE}  # fmt: skip
        assert not faint, (dark, faint)
        seen[dark] = [tuple(paper) for _, _, paper in found]
    changed = sum(one != other for one, other in zip(seen[False], seen[True], strict=True))
    assert changed == len(seen[False]), "dark is another theme everywhere"


def contrast(ink, paper):
    """Return the contrast of two colours, by the formula of WCAG 2."""
    bright, dim = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour):
    parts = np.array(colour[:3]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def test_contrast():
    """By hand: black on white, and a grey of 4.48."""
    assert contrast((0, 0, 0), (255, 255, 255)) == 21
    assert round(contrast((119, 119, 119), (255, 255, 255)), 2) == 4.48


def focused(browser):
    return browser.run("return document.activeElement.getAttribute('aria-label') || "
                       "document.activeElement.textContent")  # fmt: skip


def test_a_keyboard_walks_the_map_and_opens_a_tap(browser, pages):
    opened(browser, pages["explain"])
    browser.enter()
    assert focused(browser) == "Skip to what to fix"
    assert browser.run("return document.activeElement.getBoundingClientRect().top") >= 0
    browser.press("enter", "tab")
    first = focused(browser)
    assert "own error" in first and first.endswith("; diverged"), "a map begins where it is wrong"
    outline = "return getComputedStyle(document.activeElement).outlineWidth"
    assert browser.run(outline) == "3px", "the focus is seen"
    walk = [first]
    for key in ("right", "left", "up", "home", "end", "down"):
        browser.press(key)
        walk.append(focused(browser))
    assert walk[2] == first and walk[1] != first
    assert walk[4].startswith("model.layers.0.input_layernorm: ")
    assert walk[5].startswith("model.layers.0: ") and walk[6].startswith("model.layers.1: ")
    browser.press("enter")
    assert browser.run("return document.querySelector('dialog').open")
    shown = browser.run("return document.querySelector('dialog').innerText")
    assert shown.startswith("model.layers.1\n") and "accumulated error" in shown
    assert browser.run("return document.querySelectorAll('dialog svg rect').length") > 0
    browser.press("escape")
    assert not browser.run("return document.querySelector('dialog').open")
    assert focused(browser) == walk[6], "back to the cell"
    browser.press("tab")
    assert ": own error " in focused(browser), "one tab stop a map: the next is outside the layers"
    browser.press("tab")
    assert ": accumulated error " in focused(browser)
    assert browser.messages() == []


def test_without_scripts_everything_is_there(browser, pages):
    """Cells are links that unfold the tap they lead to; the document is asked, not a script."""
    opened(browser, pages["explain"], scripts=False)
    cell = browser.ask("POST", "/element", {"using": "css selector", "value": "td.wrong a"})
    [cell] = cell.values()
    browser.ask("POST", f"/element/{cell}/click", {})
    document = browser.tool("DOM.getDocument", depth=0)["root"]["nodeId"]
    found = browser.tool("DOM.querySelectorAll", nodeId=document, selector="details[open] .card dl")
    assert len(found["nodeIds"]) == 1
    dialogs = browser.tool("DOM.querySelectorAll", nodeId=document, selector="dialog")
    assert dialogs["nodeIds"] == []
    browser.show(1280)


def test_paper_shows_the_shades_and_nothing_to_point_at(browser, pages):
    """A browser that saves ink leaves backgrounds out, and with them what is wrong."""
    opened(browser, pages["explain"])
    style = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    assert browser.run(style, ".readout", "display") == "block"
    browser.tool("Emulation.setEmulatedMedia", media="print")
    assert browser.run(style, ".readout", "display") == "none"
    assert browser.run(style, "td.wrong", "printColorAdjust") == "exact"
    browser.tool("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("kind", ["diff", "explain"])
def test_hostile_names_stay_text(browser, tmp_path, kind):
    if kind == "diff":
        path = page(tmp_path, "diff", *write_dumps(tmp_path))
    else:
        (tmp_path / "result.json").write_text(json.dumps(diagnosis()))
        path = tmp_path / "report.html"
        assert main(["report", str(tmp_path / "result.json"), "--html", str(path)]) == 0
    for width in WIDTHS:
        opened(browser, path, width)
        browser.run("document.querySelectorAll('details').forEach((one) => one.open = true)")
        assert browser.run("return [window.hacked, document.images.length]") == [None, 0]
        assert browser.run("return document.scripts.length") == 1
        assert NAMES[0] in browser.run("return document.body.innerText")
        assert browser.run("return document.documentElement.scrollWidth") <= width
        assert browser.messages() == []
        assert [url for url in browser.requests() if url[:5] != "data:"] == [path.as_uri()]


def test_the_policy_of_a_page_stops_a_script_that_is_not_its_own(browser, pages, tmp_path):
    """Were a name to get through after all, Chromium would still refuse it."""
    broken = tmp_path / "broken.html"
    text = pages["check"].read_text(encoding="utf-8")
    injected = "<script>window.hacked=1</script><img src='https://example.com/x.png'></main>"
    broken.write_text(text.replace("</main>", injected), encoding="utf-8")
    opened(browser, broken)
    assert browser.run("return window.hacked") is None
    assert len(browser.messages()) == 2
