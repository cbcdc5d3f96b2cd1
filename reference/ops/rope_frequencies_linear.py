from lockstep.reference.ops.rope_frequencies import rope_frequencies
from lockstep.reference.shapes import Frequencies


def rope_frequencies_linear(*, theta: float, dims: int, factor: float) -> Frequencies:
    """Return the frequencies of a text whose positions are squeezed together evenly.

        frequency[j] = theta ** (-2 * j / dims) / factor          j = 0 .. dims/2 - 1

    Position p then turns as position p / factor did in training.
    Rounding: all in float64.
    Edges: a `factor` of 1 changes nothing.
    Varies by model: MLX divides the positions instead, which is the same in exact arithmetic.
    Raises: ValueError if `factor` is below 1, and for what `rope_frequencies` refuses.
    Source: Chen et al. 2023, arXiv:2306.15595, eq. 4.
    """
    if not factor >= 1:
        raise ValueError(f"factor={factor}, but should be at least 1")
    return rope_frequencies(theta=theta, dims=dims) / factor
