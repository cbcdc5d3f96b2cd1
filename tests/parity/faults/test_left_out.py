"""Every known class is executable or left out for a reason, and the page counts them. By law."""

from collections import Counter
from pathlib import Path

from lockstep.parity.faults import catalogue, families
from lockstep.parity.faults.around import FAMILIES, mistakes
from lockstep.parity.faults.left_out import ADDED, ADDED_AROUND, LEFT_OUT, left_out

PAGE = Path(__file__).parents[3] / "docs/faults.md"
COLLECTED = 298


def test_each_class_is_in_one_place():
    executable = {fault.id for fault in catalogue()}
    assert not executable & set(left_out())
    assert executable >= ADDED
    around = {one.id for one in mistakes()}
    assert not around & (executable | set(left_out())) and around >= ADDED_AROUND
    collected = (executable - ADDED) | (around - ADDED_AROUND)
    assert len(collected) + len(left_out()) == COLLECTED


def test_no_class_is_left_out_twice():
    ids = [id for some in LEFT_OUT.values() for id in some]
    assert len(ids) == len(set(ids))


def test_every_reason_says_something():
    assert all(len(reason.split()) >= 3 for reason in left_out().values())


def test_the_page_has_the_counts():
    """Its rows: family, executable classes, their variants, classes left out."""
    entries = [*catalogue(), *mistakes()]
    classes = Counter(one.family for one in entries)
    variants = Counter(one.family for one in entries for _ in one.variants)
    counts: dict[str, tuple[int, ...]] = {
        family: (classes[family], variants[family], len(LEFT_OUT.get(family, ())))
        for family in dict.fromkeys((*families(), *LEFT_OUT, *FAMILIES))
    }
    counts["all"] = tuple(map(sum, zip(*counts.values(), strict=True)))
    rows = [f"| {name} | {' | '.join(map(str, row))} |" for name, row in counts.items()]
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(rows) in page
    assert f"there are {len(ADDED | ADDED_AROUND)} of our own" in page
