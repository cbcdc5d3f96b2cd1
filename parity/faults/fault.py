"""What an entry of the catalogue is: a class of porting bugs, and how to enact it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from lockstep.parity.faults.entry import Entry
from lockstep.parity.graph import Call, Graph

# Return the wrong call for a right one, or None where the bug changes nothing.
Rewrite = Callable[[Call, Graph], Call | None]


@dataclass(frozen=True)
class Fault(Entry[Rewrite]):
    """One class of bugs in the model: each variant is a rewrite of calls.

    A `convention` changes no result of the model, only how an intermediate value looks. An
    `acausal` bug lets a token see later ones, so that the first rows cannot be computed without the
    rest. A `coarse` one rounds to a grid on which a value near a tie may fall to either side,
    whatever computes it. A variant that is `whole` changes several calls that only together are
    this bug: a layer has all of it, or none. One that is `throughout` says how layers are counted,
    or how a table lies: the model has all of it, or none. Of one that exchanges layers `pairs` says
    with which, `other(layer, layers)`: no layer has it alone. Of all variants of all classes that
    say one `rule` for all layers, a model has one. What is wrong with a layer may show `behind` it
    alone: then its calls are those of the next one. A variant that `displaces` a call does
    itself what that does, as it should be: what else is wrong with that call would not be seen.
    `dtypes` are those of the ports that alone can have a variant.
    """

    acausal: bool = False
    coarse: bool = False
    whole: Collection[str] = ()
    throughout: Collection[str] = ()
    pairs: Mapping[str, Callable[[int, int], int]] = field(default_factory=dict, compare=False)
    displaces: Mapping[str, Callable[[Call, Graph], Call | None]] = field(
        default_factory=dict, compare=False
    )
    dtypes: Mapping[str, str] = field(default_factory=dict, compare=False)
    rule: str = ""
    behind: bool = False
