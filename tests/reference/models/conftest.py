"""The bar that whole models are held to, as in `tests/witnesses`."""

from tests.witnesses.judge import judge, pytest_terminal_summary

__all__ = ["judge", "pytest_terminal_summary"]
