from lockstep.fast.ops.rope_frequencies import rope_frequencies
from lockstep.fast.shapes import Frequencies


def rope_frequencies_proportional(
    *, theta: float, dims: int, partial_rotary_factor: float
) -> Frequencies:
    """Return the frequencies of heads of which only the fastest pairs turn.

    As `reference.ops.rope_frequencies_proportional`, on the host.
    """
    if not 0 <= partial_rotary_factor <= 1:
        raise ValueError(f"partial_rotary_factor={partial_rotary_factor}, but should be 0 to 1")
    found = rope_frequencies(theta=theta, dims=dims)
    found[int(partial_rotary_factor * dims // 2) :] = 0
    return found
