"""Python's look for garbage, which takes long where much is held and nothing is garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Let Python look for no cycles meanwhile: what is read from files has none."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def look_no_more() -> None:
    """Have Python end without a look at what is left: the system takes it all back at once."""
    gc.freeze()
