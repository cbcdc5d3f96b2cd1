"""What cannot be computed of a model, told apart from a file that cannot be read."""

from types import TracebackType

from lockstep.reference.checkpoint.errors import InputError


class if_computable:
    """Leave a block where what it computes cannot be, of shapes that a model does not have.

    That is a ValueError, as is what refuses a file, such as one that changed meanwhile. This one is
    raised: taken for the other it would rule a hypothesis out that nobody has tried.
    """

    def __init__(self, *others: type[Exception]) -> None:
        self.raised = ValueError, *others

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:  # fmt: skip
        return isinstance(error, self.raised) and not isinstance(error, InputError)
