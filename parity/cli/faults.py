"""List the porting bugs that Lockstep knows; of one, its maths, its evidence, and a run of it.

The run plants the bug in the demo's checkpoint, or in --model, and says how far the logits move.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from lockstep.parity.cli.arguments import add_ignore_config
from lockstep.parity.cli.output import emit, table

if TYPE_CHECKING:
    from lockstep.parity.faults import Fault
    from lockstep.parity.faults.mistake import Mistake
    from lockstep.parity.planting.in_model import Planted

HELP = "the catalogue of porting bugs; of one, a run of it"
EXAMPLE = "  lockstep faults rope-theta-default"
DEMO = "the demo's checkpoint"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help="a bug of the catalogue")
    parser.add_argument("--model", metavar="MODEL", help="plant it in this checkpoint")
    add_ignore_config(parser)


def run(options: Namespace) -> int:
    from lockstep.parity.faults.left_out import left_out

    if options.id is None:
        emit(options, everything, listed)
    elif options.id in left_out():
        reason = left_out()[options.id]
        emit(
            options,
            lambda: {"id": options.id, "executable": False, "reason": reason},
            lambda: f"{options.id}\n\nnot executable: {reason}",
        )
    else:
        show_one(options)
    return 0


def show_one(options: Namespace) -> None:
    """Show an entry, planted where the options say."""
    from lockstep.parity.faults.mistake import Mistake
    from lockstep.parity.planting.in_model import plant, prompt_for

    fault, model = wanted(options.id), model_of(options)
    if isinstance(fault, Mistake):
        return show_mistake(options, fault, model)
    name = DEMO if options.model is None else str(model.checkpoint.path)
    tokens = prompt_for(model)
    where = f"{name} ({model.checkpoint.architecture}, {tokens.size} tokens)"
    planted = plant(fault, model, tokens)
    emit(
        options,
        lambda: {**entry(fault), "model": where, "planted": [vars(one) for one in planted]},
        lambda: f"{described(fault)}\n\n{ran(planted, where)}",
    )


def show_mistake(options: Namespace, mistake: Mistake, model: Any) -> None:
    """Show an entry before or behind the model, made with a prompt or an answer of it."""
    from lockstep.parity.planting.around import make

    name = DEMO if options.model is None else str(model.checkpoint.path)
    made = make(mistake, model)
    rows = [("variant", "other", "where it begins")]
    rows += [(one.variant or "-", one.how_much, one.first) for one in made]
    emit(
        options,
        lambda: {**entry(mistake), "model": name, "planted": [vars(one) for one in made]},
        lambda: (
            f"{described(mistake)}\n\n"
            + (f"made with {name}:\n{table(rows)}" if made else f"nothing of {name} shows it")
        ),
    )


def wanted(id: str) -> Fault | Mistake:
    """Return an entry by its id. Raises: InputError if there is none."""
    from difflib import get_close_matches

    from lockstep.parity.faults.left_out import left_out
    from lockstep.reference.checkpoint.errors import InputError, show

    faults = {fault.id: fault for fault in entries()}
    if id in faults:
        return faults[id]
    known = [*faults, *left_out()]
    near = get_close_matches(id, known, n=3) or [one for one in known if id in one][:3]
    hint = f"near it: {', '.join(near)}" if near else "`lockstep faults` lists them"
    raise InputError("faults", f"no class of bugs is called {show(id)}; {hint}")


def entries() -> list[Any]:
    """Return all entries: of the model, and around it."""
    from lockstep.parity.faults import catalogue
    from lockstep.parity.faults.around import mistakes

    return [*catalogue(), *mistakes()]


def model_of(options: Namespace) -> Any:
    """Load the model that a bug is planted in."""
    from pathlib import Path

    import lockstep.parity.demo
    from lockstep.reference.model import load

    path = options.model or Path(lockstep.parity.demo.__path__[0]) / "checkpoint"
    return load(path, ignore_config=options.ignore_config)


def everything() -> dict[str, Any]:
    """Return the whole catalogue, with what is left out."""
    from lockstep.parity.faults.left_out import LEFT_OUT

    return {
        "faults": [entry(fault) for fault in entries()],
        "left_out": [
            {"id": id, "family": family, "reason": reason}
            for family, some in LEFT_OUT.items()
            for id, reason in some.items()
        ],
    }


def entry(fault: Fault | Mistake) -> dict[str, Any]:
    """Return an entry as JSON."""
    names = ("id", "family", "wrong", "right", "symptom", "where", "fix", "convention")
    told = {name: getattr(fault, name) for name in names}
    return {
        **told,
        "executable": True,
        "evidence": [*fault.evidence],
        "variants": [*fault.variants],
    }


def listed() -> str:
    """List every entry by family: what is wrong, in a line."""
    from lockstep.parity.faults.left_out import left_out

    rows = [("family", "id", "wrong")]
    rows += [(fault.family, fault.id, fault.wrong) for fault in entries()]
    count = len(rows) - 1
    return (
        f"{table(rows)}\n\n{count} classes can be planted, {len(left_out())} are known besides; "
        "`lockstep faults ID` tells of either"
    )


def described(fault: Fault | Mistake) -> str:
    """Lay an entry out for a person."""
    rows = [
        ("wrong", fault.wrong),
        ("right", fault.right),
        ("symptom", fault.symptom),
        ("shows at", fault.where),
        ("fix", fault.fix),
        ("evidence", ", ".join(fault.evidence) or "none that can be cited"),
    ]
    kind = "a convention, no bug" if fault.convention else "bug"
    return f"{fault.id}  ({fault.family}, {kind})\n\n{table(rows)}"


def ran(planted: list[Planted], where: str) -> str:
    """Say what came of planting it."""
    if not planted:
        return f"{where} has nothing that this could be wrong in: plant it with --model MODEL"
    rows = [("variant", "calls", "dtype", "logits moved by", "first seen at")]
    rows += [
        (one.variant or "-", str(one.calls), one.dtype, moved(one), one.first or "nowhere")
        for one in planted
    ]
    return f"planted in {where}:\n{table(rows, right=frozenset([1]))}"


def moved(one: Planted) -> str:
    return "not a number" if one.moved is None else f"{one.moved:.2g}"
