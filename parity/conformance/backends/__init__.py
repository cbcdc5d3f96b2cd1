"""What runs an operation: one of ours, a Python module, or any program over a pipe.

A backend is a callable that takes a case and returns the result as a NumPy array.
"""


class Unsupported(Exception):
    """The backend says that it does not have this operation, or not for such arguments."""


class Failed(Exception):
    """The backend refused or crashed on this example, and can go on with another."""


class Broken(BaseException):
    """The backend cannot go on. No Exception, so that Hypothesis does not try it again."""
