"""Which bug leaves such a cache behind: simulated, as the catalogue does it, slot by slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lockstep.parity.explaining.caches.slots import EMPTY, STRANGE, Content
from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.slots import HELD, Asked, Held, seen_by

STALE = "kv-not-reset-between-prompts"
OWN = "kv_cache"  # the family of what goes wrong with what is kept


@dataclass(frozen=True)
class Pass:
    """What a row's cache holds behind one pass, which began with token `begins`, before `end`."""

    begins: int
    end: int
    prompt: int
    window: int | None
    content: Content

    @property
    def right(self) -> bool:
        """Whether the next token finds all that it sees, in the order that its mask takes."""
        oldest = 0 if self.window is None else max(self.end - self.window + 1, 0)
        return self.content.is_right(range(oldest, self.end), ordered=self.window is None)

    @property
    def is_complete(self) -> bool:
        """Whether every token is there once, in whatever order."""
        return not self.content.empty and sorted(self.content.tokens) == [*range(self.end)]

    def is_left_by(self, held: Held) -> bool:
        """Say whether a broken cache holds this: behind its last token, or before the next.

        A cache of a sliding layer may keep all tokens, and then goes wrong as one without a window.
        """
        end = self.end
        asked = [Asked(end, end, self.prompt, window, end + 1) for window in {self.window, None}]
        asked += [replace(one, token=end - 1, begins=self.begins, ends=end) for one in asked]
        return any(self.holds(seen_by(one) if (x := held(one)) is None else x) for one in asked)

    def holds(self, tokens: Sequence[int]) -> bool:
        """Say whether these lie there. Behind a prompt alone, empty slots are room."""
        found = [*self.content.tokens, *[EMPTY] * self.content.empty]
        least = EMPTY if self.begins else EMPTY + 1
        return sorted(x for x in found if x >= least) == sorted(
            x for x in tokens if x >= least and x != self.end
        )


@dataclass(frozen=True)
class Bug:
    """An entry of the catalogue, the form that was seen, and others that leave the same behind."""

    id: str
    variant: str
    also: tuple[str, ...] = ()


def bug_of(passes: Sequence[Pass], faults: Iterable[Fault]) -> Bug | None:
    """Return the bug that leaves these caches behind a row's passes, None if none is known."""
    wrong = [one for one in passes if not one.right]
    if all(one.content.slots[:1] == (STRANGE,) for one in wrong):
        return Bug(STALE, "slots of an earlier text")
    found = [
        (fault, variant)
        for fault in faults if fault.family == OWN
        for variant, rewrite in fault.variants.items()
        if (held := HELD.get(rewrite)) is not None and leaves(held, passes)
    ]  # fmt: skip
    if not found:
        return None
    first = found[0][0]
    variants = " or ".join(variant for fault, variant in found if fault is first and variant)
    others = dict.fromkeys(fault.id for fault, _ in found if fault is not first)
    return Bug(first.id, variants, tuple(others))


def leaves(held: Held, passes: Sequence[Pass]) -> bool:
    """Say whether a broken cache leaves all of it behind; before steps it may be as it should."""
    return all(
        (one.is_left_by(held) and (one.right or not one.is_complete))
        or (one.right and not one.begins)
        for one in passes
    )
