"""Why a bug is not named, where it is known: printed beside the misses. By the bug's name."""

RANDOM = "the port holds random numbers there: only their size tells, if rounding does not hide it"
ONE = "where another tensor's axes are reversed too, that bug alone says both: it is named there"
CAUSES: dict[str, str] = {
    "tied-head-mishandled (a head of its own)": RANDOM,
    "strict-false-drops-tensors (a projection)": RANDOM,
    "embed-table-transposed": ONE,
}
