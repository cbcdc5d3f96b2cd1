from lockstep.fast.ops.rope_frequencies import rope_frequencies
from lockstep.fast.shapes import Frequencies


def rope_frequencies_linear(*, theta: float, dims: int, factor: float) -> Frequencies:
    """Return the frequencies of a text whose positions are squeezed together evenly.

    As `reference.ops.rope_frequencies_linear`, on the host.
    """
    if not factor >= 1:
        raise ValueError(f"factor={factor}, but should be at least 1")
    return rope_frequencies(theta=theta, dims=dims) * (1 / factor)
