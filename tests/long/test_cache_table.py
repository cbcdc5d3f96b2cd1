"""Every row of the table of docs/caches.md is what is measured."""

from lockstep.reference.stores.kinds import KINDS
from tests.reference.caches.test_docs_page import check_rows


def test_every_row_is_what_is_measured():
    check_rows([*KINDS])
