"""Why a bug is not named, where it is known: printed beside the misses. By the bug's name."""

RANDOM = "the port holds random numbers there, which no formula predicts; a dump tells no more"
CAUSES: dict[str, str] = {
    "tied-head-mishandled (a head of its own)": RANDOM,
    "strict-false-drops-tensors (a projection)": RANDOM,
}
