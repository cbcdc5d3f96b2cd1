"""Try one law after another. The first three come first: they say what the others may assume."""

from lockstep.parity.laws import (
    batch,
    causality,
    finite,
    first_token,
    padding,
    repeat,
    steps,
    width,
)
from lockstep.parity.laws.bench import Bench, open_bench
from lockstep.parity.laws.finding import Finding
from lockstep.parity.laws.port import Port, Refused
from lockstep.parity.progress import Progress
from lockstep.reference.checkpoint.errors import InputError

LAWS = (repeat, first_token, causality, steps, batch, padding)


def laws(
    port: Port, *, vocabulary: int | None, length: int, seed: int, dtype: str | None,
    progress: Progress,
) -> tuple[Bench, list[Finding]]:  # fmt: skip
    """Return what the port was run on, and a finding for each law.

    Raises: InputError if the port does not answer a plain prompt.
    """
    try:
        bench = open_bench(port, vocabulary=vocabulary, length=length, seed=seed, dtype=dtype)
        found = [finite.check(bench), width.check(bench, vocabulary)]
        for law in LAWS:
            found.append(law.check(bench))
            progress(law.LAW)
    except Refused as error:
        raise InputError(port.name, f"{error}") from None
    return bench, found
