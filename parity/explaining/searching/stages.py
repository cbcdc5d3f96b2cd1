"""The tokens of a piece in stages: what few of them show is explained before what more do."""

from __future__ import annotations

from lockstep.parity.graph.graph import Graph, Piece


def stages(piece: Piece, graph: Graph) -> list[int | None]:
    """Return how many tokens each stage looks at: one, as many as no window cuts off, those of
    the prompt, all.
    """
    total = graph.shapes[piece.target][graph.token_axes[piece.target][0]]
    windows = {
        max(call.options["window"] - 1, 1) for call in graph.calls
        if call.op == "causal_mask" and call.options["window"] is not None
    }  # fmt: skip
    return [rows for rows in sorted({1, *windows, *graph.steps[:1]}) if rows < total] + [None]
