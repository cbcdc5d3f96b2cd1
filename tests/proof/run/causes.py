"""Why a bug is not named, where it is known: printed beside the misses. By the bug's name."""

RANDOM = "the port holds random numbers there: only their size tells, if rounding does not hide it"
SHORT = "attention rounds as no known way to the bit; all numbers together are just not sure enough"
CAUSES: dict[str, str] = {
    "rope-inv-freq-half": SHORT,
    "sdpa-scale-folded-half": SHORT,
    "tied-head-mishandled (a head of its own)": RANDOM,
    "strict-false-drops-tensors (a projection)": RANDOM,
}
