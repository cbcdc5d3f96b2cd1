"""List the porting bugs that Lockstep knows; of one, its maths, its evidence, and a run of it.

The run plants the bug in the demo's checkpoint, or in --model, and says how far the logits move.
A word in the place of an ID lists the bugs of that family, or whose ID has it.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from lockstep.parity.cli.arguments import add_ignore_config
from lockstep.parity.cli.output import counted, emit, table

if TYPE_CHECKING:
    from lockstep.parity.faults import Fault
    from lockstep.parity.faults.mistake import Mistake
    from lockstep.parity.planting.in_model import Planted

HELP = "the catalogue of porting bugs; of one, a run of it"
EXAMPLE = """\
  lockstep faults rope
  lockstep faults rope-theta-default"""
DEMO = "the demo's checkpoint"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help="a bug of the catalogue, or a word")
    parser.add_argument("--model", metavar="MODEL", help="plant it in this checkpoint")
    add_ignore_config(parser)


def run(options: Namespace) -> int:
    from lockstep.parity.faults.left_out import left_out

    word = options.id
    if word is None or (word and about(word) and not is_id(word)):
        list_those(options, word or "")
    elif word in left_out():
        reason = left_out()[word]
        emit(
            options,
            lambda: {"id": word, "executable": False, "reason": reason},
            lambda: f"{word}\n\nnot executable: {reason}",
        )
    else:
        show_one(options)
    return 0


def list_those(options: Namespace, word: str) -> None:
    """List the entries about a word. Raises: InputError if a model is named to plant them in."""
    from lockstep.reference.checkpoint.errors import InputError

    if options.model is not None:
        raise InputError("--model", "plants one bug: give its whole ID")
    emit(options, lambda: everything(word), lambda: listed(word))


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
    near = get_close_matches(id, known, n=3) or [*left_out_about(id)][:3] * bool(id)
    hint = f"near it: {', '.join(near)}" if near else "`lockstep faults` lists them"
    raise InputError("faults", f"no class of bugs is called {show(id)}; {hint}")


def entries() -> list[Any]:
    """Return all entries: of the model, and around it."""
    from lockstep.parity.faults import catalogue
    from lockstep.parity.faults.around import mistakes

    return [*catalogue(), *mistakes()]


def is_id(word: str) -> bool:
    from lockstep.parity.faults.left_out import left_out

    return word in left_out() or any(word == one.id for one in entries())


def about(word: str) -> list[Any]:
    """Return the entries of this family, or whose id has the word; all of them for none."""
    return [one for one in entries() if word == one.family or word in one.id]


def left_out_about(word: str) -> dict[str, tuple[str, str]]:
    """Return family and reason of what is left out of it, or of the family, by id."""
    from lockstep.parity.faults.left_out import LEFT_OUT

    return {
        id: (family, reason)
        for family, some in LEFT_OUT.items()
        for id, reason in some.items()
        if word == family or word in id
    }


def model_of(options: Namespace) -> Any:
    """Load the model that a bug is planted in."""
    from pathlib import Path

    import lockstep.parity.demo
    from lockstep.reference.model import load

    path = options.model or Path(lockstep.parity.demo.__path__[0]) / "checkpoint"
    return load(path, ignore_config=options.ignore_config)


def everything(word: str = "") -> dict[str, Any]:
    """Return the catalogue, with what is left out; of a word, what that is about."""
    return {
        "faults": [entry(fault) for fault in about(word)],
        "left_out": [
            {"id": id, "family": family, "reason": reason}
            for id, (family, reason) in left_out_about(word).items()
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


def listed(word: str = "") -> str:
    """List entries by family: what is wrong, in a line."""
    rows = [("family", "id", "wrong")]
    rows += [(fault.family, fault.id, fault.wrong) for fault in about(word)]
    classes = counted(len(rows) - 1, "class", "classes")
    left = len(left_out_about(word))
    besides = f", {left} {'is' if left == 1 else 'are'} known besides" if left else ""
    return f"{table(rows)}\n\n{classes} can be planted{besides}; `lockstep faults ID` tells of one"


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
