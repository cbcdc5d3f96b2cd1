"""A head that is stored although the config ties it to the embedding."""

from __future__ import annotations

from lockstep.reference.checkpoint.errors import show
from lockstep.reference.checkpoint.sharded import Shards

HEAD = "lm_head.weight"
TILE = 4 << 20  # bytes that are compared at a time


def warn_of_other_head(
    shards: Shards, embedding: str, stray: list[str], warnings: list[str]
) -> str | None:
    """Warn of a stored head that is not used and is not the embedding, which is used, either.

    Its name in the files is returned, None if there is no such head. Engines run two different
    models then: transformers 5 the stored head, mlx-lm and this one the embedding. Nothing is read
    unless such a head is there. One that is packed, or of another dtype, is not compared.
    """
    heads = (one for one in stray if one.endswith(HEAD) and not _the_same(shards, one, embedding))
    name = next(heads, None)
    if name is not None:
        warnings.append(
            f"tie_word_embeddings=true, and {show(name)} is not {show(embedding)}, which is "
            "used here and by mlx-lm; transformers runs the stored head"
        )
    return name


def _the_same(shards: Shards, name: str, other: str) -> bool:
    """Compare bits, tile by tile up to the first that differs; what cannot be compared is so."""
    if other not in shards:
        return True
    one, two = shards.entry(name), shards.entry(other)
    if one.dtype != two.dtype or one.shape != two.shape:
        return True
    rows = max(1, TILE * one.shape[0] // max(1, one.stop - one.start))
    tiles = ((start, min(start + rows, one.shape[0])) for start in range(0, one.shape[0], rows))
    return all(_bits(shards, name, tile) == _bits(shards, other, tile) for tile in tiles)


def _bits(shards: Shards, name: str, tile: tuple[int, int]) -> bytes:
    return shards.read_rows(name, *tile).tobytes()
