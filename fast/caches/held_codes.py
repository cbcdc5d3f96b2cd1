"""What attention is given of a layer whose keys or values are codes: the codes as they are."""

from dataclasses import dataclass, replace
from typing import Any

from lockstep.fast.shapes import Array, Keys
from lockstep.reference.stores.coded import decoded

FEW = 16  # queries at a time: with more of them, decoding is the smaller part


@dataclass(frozen=True, eq=False)
class HeldCodes:
    """Keys or values (B, G, S, D): codes, and behind them the `recent` ones that are none.

    `like` has their dtype and width. This is `stores.coded.Hold`.
    """

    codec: Any  # a `Codec` of `stores.codecs`
    ops: Any
    codes: list[Array]
    recent: Array | None
    like: Array

    @property
    def shape(self) -> tuple[int, ...]:
        late = 0 if self.recent is None else self.recent.shape[2]
        batch, groups, held, _ = self.codes[0].shape
        return batch, groups, held + late, self.like.shape[3]

    def part(self, start: int, stop: int) -> "HeldCodes":
        """Return some of what is in codes."""
        codes = [one[:, :, start:stop] for one in self.codes]
        return replace(self, codes=codes, recent=None)

    def decoded(self) -> Keys:
        """Return what is held: a product of each token with a matrix, if it is TurboQuant's."""
        return decoded(self.codec, self.ops, self.codes, self.recent, self.like)
