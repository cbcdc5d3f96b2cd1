"""Know by their values what numbered tensors are whose names do not say it: `h.0` to `h.11`.

What equals a value of the reference's first layer, and no other, is that value, in every layer: if
there are as many as layers, and the second is that of layer 1. So `h.0` tells whether streams
enter layers or leave them, and whether the embedding is among them. The last one may come out of
the last norm, as in `output_hidden_states=True`. All others are left: numbered tensors may be
anything, and a port that is right must not be taken for a wrong one. Where nothing equals, since
a bug is in the first layer already, the norms that read them may tell, or a map.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lockstep.parity.naming.by_reader import by_reader
from lockstep.parity.naming.families import Shape, families
from lockstep.parity.naming.first_layer import FirstLayer
from lockstep.parity.naming.recovery import Recovery
from lockstep.parity.naming.streams import Read, Streams

GLUED = re.compile(r"(?<=[A-Za-z])(?=(?:0|[1-9][0-9]{0,5})$)")
LEFT = "{template} left: no value of the first layer says which streams, but a map may (--map)"


def recover_by_value(
    names: Mapping[str, Shape],
    known: Mapping[str, Shape],
    taken: Mapping[str, str],
    read: Read,
    first: FirstLayer,
) -> Recovery:
    """Recover numbered names that no words explain; `taken` has the names of known taps."""
    done = Recovery()
    glued = {GLUED.sub(".", name): name for name in names}
    shapes = {spelled: names[name] for spelled, name in glued.items()}
    for family in families(shapes).values():
        streams = Streams(family, known, read, glued, first)
        if not family.layered:
            found, told = streams.beside()
        elif len(family.shapes) > 1 and min(family.shapes) < 2:
            found, told = streams.taps()
            if not found and streams.are_usual:
                found, told = by_reader(streams, taken)
        else:
            continue
        if not found and streams.are_usual:
            done.plan.append(LEFT.format(template=family.template))
        if not found or set(found.values()) & {*taken, *done.names.values()}:
            continue
        done.names |= found
        done.plan.append(f"{len(found)} of {family.template} taken for {shown(found)}, {told}")
    return done


def shown(found: Mapping[str, str]) -> str:
    taps = [*found.values()]
    return " to ".join([taps[0], *taps[1:][-1:]])
