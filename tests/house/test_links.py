"""No page links to a file that is not there. By law."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
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
