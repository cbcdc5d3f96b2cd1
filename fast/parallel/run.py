"""One forward pass of one rank: where it works alone, and where it meets the others.

The order and the names are those of `reference/parallel/run.py`; read that one first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from lockstep.fast.parallel.group import Group
from lockstep.fast.run import Run
from lockstep.fast.shapes import Array, Tokens
from lockstep.reference.checkpoint.parallel.adapting import bare
from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint
from lockstep.reference.checkpoint.parallel.rules import rule_of


@dataclass(frozen=True)
class ParallelRun(Run):
    """A run on the weights of one rank."""

    group: Group
    checkpoint: RankCheckpoint
    gains: Mapping[str, Array]  # what DoRA multiplies the rows of a sum by, by module

    def linear(self, x: Array, path: str) -> Array:
        """Apply a projection: one that is cut by columns gives a part, and the parts are summed.

        The gain of DoRA is multiplied and the bias added once, to the sum.
        """
        rule = rule_of(path)
        if rule is None or rule.axis == "rows":
            return super().linear(x, path)
        alone = replace(self, adapters=bare(self.adapters, path))
        y = self.group.all_sum(alone.projected(x, self.weights[f"{path}.weight"], None, path))
        gain, bias = self.gains.get(path), self.weights.get(f"{path}.bias")
        y = y if gain is None else y * gain.astype(y.dtype)
        return self.tap(path, y if bias is None else y + bias)

    def looked_up(self, ids: Tokens, path: str) -> Array:
        """Look up the rows that are here; this rank adds zeros for those that are not."""
        if rule_of(path) is None:
            return super().looked_up(ids, path)
        ((first, stop),) = self.checkpoint.spans(path)
        here = (ids >= first) & (ids < stop)
        rows = super().looked_up(np.where(here, ids - first, 0), path)
        return self.group.all_sum(zero_unless(here, rows))

    def unembedded(self, x: Array, tied_to: str | None) -> Array:
        """Score the words that are here, and put those of all ranks behind each other."""
        scores = Run.unembedded(replace(self, trace=None), x, tied_to)  # (B, L, words here)
        widths = self.checkpoint.widths("lm_head")
        parts = self.group.all_gather(widened(scores, max(widths)))  # (ranks, B, L, most words)
        each = [parts[rank][..., :width] for rank, width in enumerate(widths)]
        return self.tap("lm_head", joined(each))


def zero_unless(here: np.ndarray, rows: Array) -> Array:
    """Keep the rows that are here, and make the others zeros: (B, L), (B, L, E)."""
    if isinstance(rows, np.ndarray):
        return np.where(here[..., None], rows, np.zeros((), rows.dtype))
    return mx.where(mx.array(here)[..., None], rows, mx.zeros((), rows.dtype))


def widened(x: Array, width: int) -> Array:
    """Fill up the last axis with zeros: ranks give parts of one shape, whatever they have."""
    lacking = [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])]
    return np.pad(x, lacking) if isinstance(x, np.ndarray) else mx.pad(x, lacking)


def joined(parts: list[Array]) -> Array:
    on_host = isinstance(parts[0], np.ndarray)
    return np.concatenate(parts, axis=-1) if on_host else mx.concatenate(parts, axis=-1)
