"""What an entry of the catalogue is: a class of porting bugs, and how to enact it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from lockstep.parity.graph import Call, Graph

# Return the wrong call for a right one, or None where the bug changes nothing.
Rewrite = Callable[[Call, Graph], Call | None]


@dataclass(frozen=True)
class Fault:
    """One class of bugs. `variants` are the forms it is found in, each a rewrite of calls.

    A bug is said in formulas, `wrong` and `right`; `where` is the first tap that shows it; `fix`
    tells a porter what to do. A `convention` is no bug: the model stays the same one, and only an
    intermediate value looks different. An `acausal` one lets a token see later ones, so that the
    first rows cannot be computed without the rest. A `coarse` one rounds to a grid on which a value
    near a tie may fall to either side, whatever computes it. A variant that is `whole` changes
    several calls that only together are this bug: a layer has all of it, or none. One that is
    `throughout` says how layers are counted, or how a table lies: the model has all of it, or none.
    Of one that exchanges layers `pairs` says with which, `other(layer, layers)`: no layer has it
    alone. Of all variants of all classes that say one `rule` for all layers, a model has one.
    """

    id: str
    wrong: str
    right: str
    symptom: str
    where: str
    fix: str
    variants: Mapping[str, Rewrite]
    evidence: tuple[str, ...] = ()
    convention: bool = False
    acausal: bool = False
    coarse: bool = False
    whole: Collection[str] = ()
    throughout: Collection[str] = ()
    pairs: Mapping[str, Callable[[int, int], int]] = field(default_factory=dict, compare=False)
    rule: str = ""
    family: str = field(default="", compare=False)
