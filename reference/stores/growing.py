"""A store that grows in steps: most tokens are written in place, without copying the rest."""

from lockstep.reference.stores.buffered import Buffered

STEP = 256  # tokens of room that are added at a time


class Growing(Buffered):
    """A buffer of (B, G, room, D), whose room is a multiple of a step."""

    def room_for(self, stop: int) -> int:
        """Return the next multiple of a step."""
        return -(-stop // STEP) * STEP
