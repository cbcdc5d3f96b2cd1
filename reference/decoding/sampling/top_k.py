"""Keep the likeliest tokens by number."""

from lockstep.reference.decoding.sampling.candidates import Candidates


def top_k(left: Candidates, count: int, *, ties: str) -> Candidates:
    """Keep the `count` best, best first; 0 keeps all as they are.

    Of those that tie with the last one, `ties` keeps the "lowest" ids, so that exactly `count` are
    left, or "all".
    """
    if count == 0:
        return left
    ranked = left.best_first()
    if ties == "lowest" or count >= len(ranked.ids):
        return ranked.at(slice(count))
    return ranked.at(ranked.logits >= ranked.logits[count - 1])
