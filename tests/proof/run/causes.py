"""Why a bug is not named, where it is known: printed beside the misses. By the bug's name."""

RANDOM = "the port holds random numbers there: only their size tells, if rounding does not hide it"
CAUSES: dict[str, str] = {
    "tied-head-mishandled (a head of its own)": RANDOM,
    "strict-false-drops-tensors (a projection)": RANDOM,
}
