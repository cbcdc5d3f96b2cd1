"""How the benchmark counts. By hand: what `explain` could have said, and what it is worth."""

import json
from types import SimpleNamespace

import pytest

from tests.proof.run import __main__ as runner
from tests.proof.run.case import Case
from tests.proof.run.draw import each_once
from tests.proof.run.score import Scored, count_shared_names, score
from tests.proof.run.table import goals, misses, report
from tests.proof.run.tally import Dumped, counts, read, rows

BUG = {"rope-sign-flipped (every layer)": "rope-sign-flipped"}
OTHER = {"embed-scale-missing": "embed-scale-missing"}


def said(*sets: list[str], unexplained: int = 0, conventions: tuple[str, ...] = ()):
    faults = [SimpleNamespace(id=ids[0], also_fits=ids[1:]) for ids in sets]
    return SimpleNamespace(faults=faults, unexplained=[None] * unexplained, conventions=conventions)


def never(bug: str, id: str) -> bool:
    return False


def always(bug: str, id: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("diagnosis", "alike", "status", "wrong"),
    [
        (said(["rope-sign-flipped"]), never, "named", []),
        (said(["rope-sign-flipped"], unexplained=1), never, "named", []),
        (said(conventions=("rope-sign-flipped: x",)), never, "named", []),
        (said(["a", "rope-sign-flipped"]), always, "tie", []),
        (said(["a", "rope-sign-flipped"]), never, "false tie", []),
        (said(["a", "b", "c", "d", "rope-sign-flipped"]), always, "false tie", []),
        (said(["a"]), always, "equal", []),
        (said(["a"]), never, "wrong", ["a"]),
        (said(["rope-sign-flipped"], ["a"]), never, "named", ["a"]),
        (said(unexplained=1), never, "unknown", []),
        (said(), never, "missed", []),
    ],
)
def test_a_bug_alone_has_one_status(diagnosis, alike, status, wrong):
    found = score(BUG, diagnosis, alike)
    assert [*found.status.values()] == [status]
    assert found.wrong == wrong


def test_one_name_accounts_for_one_bug_at_most():
    found = score(BUG | OTHER, said(["a"]), always)
    assert sorted(found.status.values()) == ["equal", "missed"]


@pytest.mark.parametrize(("unexplained", "left"), [(0, "missed"), (1, "unknown")])
def test_a_true_tie_of_one_bug_says_nothing_of_another_that_shares_an_id_with_it(unexplained, left):
    """A tensor that was dropped may be a scale that is missing, or one of random numbers."""
    diagnosis = said([*OTHER, *BUG.values()], unexplained=unexplained)
    found = score(BUG | OTHER, diagnosis, lambda bug, id: bug in OTHER)
    assert found.status == dict.fromkeys(OTHER, "tie") | dict.fromkeys(BUG, left)
    found = score(BUG | OTHER, diagnosis, never)
    assert {*found.status.values()} == {"false tie"}


@pytest.mark.parametrize(
    ("first", "alike", "status"),
    [
        ("a", always, "equal"),
        ("b", always, "missed"),
        (None, always, "missed"),
        ("a", never, "missed"),
    ],
)
def test_a_name_that_stands_for_another_says_what_it_is_the_same_as_where_that_shows(
    first, alike, status
):
    scored = Scored(status=dict.fromkeys(BUG, "missed") | dict.fromkeys(OTHER, "named"))
    diagnosis = SimpleNamespace(faults=[SimpleNamespace(id="x", taps=["a", "c"])])
    count_shared_names(scored, diagnosis, alike, lambda bug: first)
    assert scored.status == dict.fromkeys(BUG, status) | dict.fromkeys(OTHER, "named")


def outcome(status: str, **more) -> dict:
    bug = "embed-scale-missing"
    case = {"kind": "single", "build": "qwen3", "seed": 1, "dtype": "float32"}
    case |= {"attention": "eager", "bugs": [bug], "granularities": ["modules"], "length": 40}
    case |= {"rows": 1, "threads": 1}
    found = {"granularity": "modules", "seen": {bug: True}, "status": {bug: status}, "wrong": []}
    return {"case": case, "outcomes": [found | {"verdict": "faults"} | more], "took": 1.0}


def test_true_ties_are_apart_and_everything_else_that_is_not_named_counts(tmp_path):
    statuses = ["tie", "equal", "false tie", "unknown", "missed", "error", "too long"]
    named = [outcome("named", seconds=60.0), outcome("named", seconds=60.1)]
    lines = [{"asked": {}}, *named, *map(outcome, statuses), {"seconds": 7}]
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    _, dumps, seconds = read(path)
    assert counts(rows(dumps)) == (2, 7)
    assert counts(rows(dumps), within=60) == (1, 7)
    assert seconds == 7
    table = goals(rows(dumps), dumps)
    assert "| named, alone, from the modules | 99 % | 28.6 % (2 of 7) | **no** |" in table
    assert "| in 60 s of a processor |  | 14.3 % (1 of 7) |  |" in table
    assert "| nothing said of a bug that shows | 0 | 1 of 9 | **no** |" in table
    assert misses(rows(dumps), dumps).count("`embed-scale-missing`") == 5


HEADER = {
    "asked": {"kinds": ["single"], "granularities": ["modules"], "seeds": [1]}, "minutes": None,
    "limit": 9, "date": "today", "machine": "here", "workers": 2, "versions": {"numpy": "2"},
}  # fmt: skip


def reported(*outcomes: dict) -> str:
    cases = [Case.of(one["case"]) for one in outcomes]
    found = [one["outcomes"][0] for one in outcomes]
    dumps = [Dumped(case, "modules", one) for case, one in zip(cases, found, strict=True)]
    return report([(HEADER, dumps, 60)])


def test_full_rows_and_empty_tables_are_left_out_and_counted():
    """By hand: one build in which all is named, and one with a bug that is passed over."""
    full, other = outcome("named", seconds=1.0), outcome("missed", seconds=1.0)
    other["case"] = other["case"] | {"build": "llama"}
    text = reported(full, full, other)
    assert "0 of 1 by dtype, 1 of 2 by architecture, 0 of 1 by fault." in text
    assert "| llama | 0.0 % (0 of 1) |" in text and "| qwen3 |" not in text
    assert "layers" not in text and "| not run |" not in text
    assert "By size of the combination" not in text
    assert "Wrong names: none.\n\nAlarms: none." in text
    assert "2 processes of one thread" in text


def test_a_run_in_which_all_is_named_says_how_much_that_was():
    """By hand; a row of true ties alone is not full, as it has no share."""
    text = reported(outcome("named", seconds=1.0), outcome("tie", seconds=1.0))
    assert "1 of 1 by dtype, 1 of 1 by architecture, 1 of 1 by fault." in text
    assert "## By" not in text and "Bugs that were not named: none." in text
    ties = reported(outcome("tie", seconds=1.0))
    assert "| qwen3 | none |" in ties and "0 of 1 by architecture" in ties


def test_a_stopped_run_goes_on_where_it_was(tmp_path):
    """By law: what is in the file is not run again, and the seeds are those of the file."""
    path = tmp_path / "run.jsonl"
    options = SimpleNamespace(
        json=path, seeds=None, builds=["qwen3"], dtypes=["float32"], granularities=["modules"],
        kinds=["clean"], weights=1, once=False, ids=[], workers=1, minutes=None,
        limit=9,
    )  # fmt: skip
    header, done = runner.begun(options)
    assert done == set() and header["asked"]["seeds"][0] >= runner.FIRST_SEED
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(outcome("named")) + '\n{"case": ')
    again, done = runner.begun(options)
    assert again == json.loads(json.dumps(header))
    assert len(done) == 1


def test_each_bug_is_planted_once_in_each_build_in_ports_of_every_kind():
    """By law: as many cases as bugs in builds, the same ones each time, of every dtype."""
    ports = [(dtype, how) for dtype in ("float32", "bfloat16") for how in ("eager", "sdpa")]
    cases = [
        Case("single", build, 10_000, *port, bugs=(f"bug {number}",))
        for build in ("llama", "gpt2")
        for port in ports
        for number in range(40)
    ]
    found = list(each_once(cases))
    assert len(found) == len({(one.build, one.bugs) for one in found}) == 80
    assert {(one.dtype, one.attention) for one in found} == {*ports}
    assert found == list(each_once(cases))
