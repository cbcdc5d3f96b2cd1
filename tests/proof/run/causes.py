"""Why a bug is missed, where it is known: printed beside the misses. By class."""

CAUSES: dict[str, str] = {
    "tied-head-mishandled": "a head of its own holds numbers that no formula predicts: `unknown` is"
    " all that a dump can tell without the port's weights",
}
