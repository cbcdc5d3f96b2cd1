"""Proofs that need no peer but take long: `make test-peers` runs them, `make test` does not."""

from tests.parity.conftest import _templates_are_rendered_once, kept_demo, lockstep, refuses

__all__ = ["_templates_are_rendered_once", "kept_demo", "lockstep", "refuses"]
