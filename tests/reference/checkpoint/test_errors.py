"""The one error line. By law: printable, one line, 400 bytes, whatever went in."""

from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.reference.checkpoint.errors import InputError, show, show_names

ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=600)


@given(path=ANY_TEXT, what=ANY_TEXT, where=st.none() | ANY_TEXT)
@example(path="x" * 5000, what="y" * 5000, where="z" * 5000)
@example(path="\udcff\u202e\n", what="\x1b[31m::error::\r\n", where="\ud800")
def test_line_is_clean_whatever_goes_in(path: str, what: str, where: str | None) -> None:
    line = str(InputError(path, what, where))
    assert line.isprintable()
    assert len(line.encode()) <= 400


def test_line_by_hand() -> None:
    assert str(InputError("a/b", "file is empty")) == "a/b: file is empty"
    assert str(InputError("a/b", "bad dtype", "tensor 'x'")) == "a/b: bad dtype (tensor 'x')"


def test_the_end_of_a_long_path_stays() -> None:
    line = str(InputError("/very" * 100 + "/model/config.json", "file is empty"))
    assert line.startswith("...") and line.endswith("/model/config.json: file is empty")


def test_a_long_path_and_place_leave_the_message_whole() -> None:
    what = "w" * 170
    assert what in str(InputError("p" * 999, what, "q" * 999))


def test_show_by_hand() -> None:
    assert show("a\nb") == "'a\\x0ab'"
    assert show("\x1b[0m") == "'\\x1b[0m'"
    assert show("\u202eabc") == "'\\u202eabc'"
    assert show("\ud800") == "'\\ud800'"
    assert show("\U000e0001") == "'\\U000e0001'"
    assert show("caf\u00e9") == "'caf\u00e9'"
    assert show([None, True, False, 1, 2.5, "x"]) == "[null, true, false, 1, 2.5, 'x']"
    assert show({"a": 1}) == "an object of 1 keys"
    assert show(list(range(20))) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]"
    assert show(10**100) == "an integer of 333 bits"


@given(value=ANY_TEXT, limit=st.integers(8, 100))
def test_show_keeps_its_limit(value: str, limit: int) -> None:
    text = show(value, limit)
    assert text.isprintable() and len(text.encode()) <= limit + len("''")


def test_show_of_a_huge_list_is_quick_and_short() -> None:
    assert len(show([[["x" * 10**6] * 1000] * 1000] * 1000, 60)) <= 60


def test_show_names_by_hand() -> None:
    assert show_names(["a", "b"]) == "'a', 'b'"
    assert show_names(["a", "b", "c", "d", "e"]) == "'a', 'b', 'c' and 2 more"
