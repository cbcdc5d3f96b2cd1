"""How a model's results come to hand: what each package says in its `decoding/host.py`."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from lockstep.reference.checkpoint.errors import InputError

Choose = Callable[[Any], int]
Found = TypeVar("Found")


class Host(Protocol):
    """NumPy has its results at once; a device computes when it is asked to, all in one go."""

    def computed(self, model: Any, cache: Any) -> None:
        """Compute what a cache is to hold, where that was put off."""
        ...

    def choices(
        self, model: Any, logits: Any, chooses: Sequence[Choose]
    ) -> Sequence[int | InputError]:
        """Let each of the rows (R, V) be chosen from by its own `choose`.

        Returns the ids, and in the place of one that cannot be chosen the error that says why.
        """
        ...

    def brought(self, model: Any, logits: Any) -> Any:
        """Return logits as a NumPy array that a sampler can work on."""
        ...


def chosen(host: Host, model: Any, logits: Any, chooses: Sequence[Choose]) -> list[int]:
    """Return the ids that are chosen from the rows (R, V). Raises: InputError of the first row."""
    return [whole(one) for one in host.choices(model, logits, chooses)]


def whole(one: Found | InputError) -> Found:
    """Return what there is. Raises: the error that is in its place."""
    if isinstance(one, InputError):
        raise one
    return one


def attempt(choose: Choose, logits: Any) -> int | InputError:
    """Choose from one row (V,), or return the error that says why there is nothing to choose."""
    try:
        return choose(logits)
    except InputError as error:
        return error
