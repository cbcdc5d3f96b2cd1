"""What cannot be computed of a model, told apart from a file that cannot be read."""

from lockstep.reference.checkpoint.errors import InputError


def pass_on_refusal(error: Exception) -> None:
    """Raise an error again that refuses a file, such as one that changed meanwhile.

    It is a ValueError, as is what operations raise of shapes that a model does not have. Taken for
    such a one it would rule a hypothesis out that nobody has tried.
    """
    if isinstance(error, InputError):
        raise error
