"""What ends a trace early."""

import pytest

from lockstep.parity.dumps.tracing import trace_run
from lockstep.parity.resuming.kept_trace import KeptTrace


class Cut(KeyboardInterrupt):
    """What ends a run before it writes one tap more."""


@pytest.fixture
def cut(monkeypatch):
    """Return what runs a trace until so many taps more are written."""

    def run(after, *arguments, error=Cut, **options):
        written, left = KeptTrace.__call__, [after]

        def call(self, name, value):
            if self.record(name) is None:
                left[0] -= 1
                if left[0] < 0:
                    raise error
            written(self, name, value)

        with monkeypatch.context() as patch:
            patch.setattr(KeptTrace, "__call__", call)
            with pytest.raises(error):
                trace_run(*arguments, resume=True, **options)

    return run
