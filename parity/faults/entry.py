"""What is told of every class of porting bugs, in the model or around it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Form = TypeVar("Form")


@dataclass(frozen=True)
class Entry(Generic[Form]):
    """One class of bugs. `variants` are the forms it is found in, each with what enacts it.

    A bug is said in formulas, `wrong` and `right`; `where` is the first tap that shows it; `fix`
    tells a porter what to do; `evidence` is where it happened. A `convention` is no bug: engines
    that are right in their own way differ in it.
    """

    id: str
    wrong: str
    right: str
    symptom: str
    where: str
    fix: str
    variants: Mapping[str, Form]
    evidence: tuple[str, ...] = ()
    convention: bool = False
    family: str = field(default="", compare=False)
