"""One case of the benchmark: which port, with which bugs, on which prompt."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from tests.proof import builds

KINDS = ("single", "logits", "combination", "without", "own", "benign", "clean")


@dataclass(frozen=True)
class Case:
    """A port and its prompt.

    `single` has one bug, and so has `logits`, whose dump is the logits alone; `combination` has
    several. `without` has one whose class is taken out of the
    catalogue, so that nobody can name it. `own` is our own graph with its calls rewritten, for what
    cannot be patched into torch. `benign` has a change that is no bug, `clean` none at all.
    `build` is a build, or `build+adapter`. Of a batch of several `rows` the first one is dumped.
    """

    kind: str
    build: str
    seed: int
    dtype: str
    attention: str
    bugs: tuple[str, ...] = ()
    granularities: tuple[str, ...] = ("modules", "layers", "logits")
    length: int = builds.LONG
    rows: int = 1
    threads: int = 1

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def of(fields: dict[str, Any]) -> "Case":
        lists = {name: tuple(fields[name]) for name in ("bugs", "granularities")}
        return Case(**(fields | lists))
