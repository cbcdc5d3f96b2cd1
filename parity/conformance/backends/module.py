"""A Python module with functions under the operations' names."""

from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.conformance.backends import Failed, Unsupported
from lockstep.parity.conformance.case import Case, call
from lockstep.parity.conformance.compare import for_reference
from lockstep.reference.checkpoint.errors import show


class Module:
    """A namespace that someone else wrote: arguments are NumPy arrays in the reference's order."""

    def __init__(self, name: str, namespace: Any):
        self.name, self.namespace = name, namespace

    def __call__(self, case: Case) -> np.ndarray:
        if not callable(getattr(self.namespace, case.op, None)):
            raise Unsupported(case.op)
        try:
            with np.errstate(all="ignore"):
                return to_numpy(call(self.namespace, case.op, for_reference(case.values)))
        except NotImplementedError:
            raise Unsupported(case.op) from None
        except (Exception, SystemExit) as error:
            raise Failed(f"raised {type(error).__name__}: {show(str(error), 160)}") from None

    def close(self) -> None:
        """Nothing was opened."""
