"""No page links to a file, or to a heading, that is not there. By law."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
ANCHOR = re.compile(r"\]\(([^)#\s:]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE = re.compile(
    r"^```.*?^```$", re.DOTALL | re.MULTILINE
)  # indexing and calling looks like a link


def pages() -> list[Path]:
    folders = ("docs", "reference", "fast", "parity", "tests")
    below = [page for folder in folders for page in sorted((ROOT / folder).rglob("*.md"))]
    return [*sorted(ROOT.glob("*.md")), *below]


def links(page: Path) -> list[str]:
    found = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return [link for link in found if "://" not in link and not link.startswith("mailto:")]


def test_links_lead_to_files():
    found = [(page, link) for page in pages() for link in links(page)]
    assert found
    broken = [
        f"{page.relative_to(ROOT)} -> {link}"
        for page, link in found
        if not (page.parent / link).exists()
    ]
    assert not broken, "\n".join(broken)


def anchors(page: Path) -> set[str]:
    """Return what GitHub lets one link to in a page: headings, lower, dashed, numbered if alike."""
    seen: dict[str, int] = {}
    for heading in HEADING.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        number = seen[name] = seen.get(name, -1) + 1
        seen[f"{name}-{number}" if number else name] = number
    return {*seen}


def test_links_lead_to_headings():
    found = [
        (page, page.parent / file if file else page, name)
        for page in pages()
        for file, name in ANCHOR.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    ]
    assert found
    broken = [
        f"{page.relative_to(ROOT)} -> {target.name}#{name}"
        for page, target, name in found
        if target.suffix == ".md" and name not in anchors(target)
    ]
    assert not broken, "\n".join(broken)
