"""A store with room for a fixed number of tokens, made once."""

from lockstep.reference.stores.buffered import Buffered
from lockstep.reference.stores.held_positions import check_room
from lockstep.reference.stores.store import Zeros


class Preallocated(Buffered):
    """A buffer of (B, G, room, D). Every token is written to the slot that it is told."""

    def __init__(self, room: int, zeros: Zeros):
        super().__init__(zeros)
        self.room = room

    def room_for(self, stop: int) -> int:
        """Return the room that there is. Raises InputError if it is not enough."""
        check_room(stop, self.room)
        return self.room
