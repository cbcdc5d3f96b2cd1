"""A store that grows in steps: most tokens are written in place, without copying the rest."""

from lockstep.reference.stores.buffered import Buffered

STEP = 256  # tokens of room that are added at a time, at first
SHARE = 8  # later a step is at most this part of what is held


def roomy(stop: int) -> int:
    """Return how many tokens a buffer that grows has room for once it holds `stop` of them.

    The next multiple of a step: of 256 up to 4,095, then of the largest 256 * 2^n that is at most
    an eighth of `stop`. So less than an eighth is empty, or less than 256; and all copies together
    are at most 12.5 times what is held in the end, where steps of one size would make them grow
    with its square.
    """
    step = STEP << max(0, (stop // (SHARE * STEP)).bit_length() - 1)
    return -(-stop // step) * step


class Growing(Buffered):
    """A buffer of (B, G, room, D), whose room is a multiple of a step."""

    def room_for(self, stop: int) -> int:
        """Return the next multiple of a step that grows with what is held, with room for the token
        behind it: a prompt that filled its buffer would be copied whole at once.
        """
        return roomy(stop + 1)
