"""A diagnosis as a person reads it: what to fix on top, then why."""

from __future__ import annotations

from lockstep.parity.cli.output import counted, printable, table
from lockstep.parity.explaining.said.diagnosis import IDS, STAGES, Diagnosis, Named, Unexplained
from lockstep.parity.naming.grouping import grouped, layers_said
from lockstep.reference.checkpoint.errors import escape

HEADLINES = {"clean": "CLEAN", "faults": "FAULTS", "unknown": "UNKNOWN"}
LISTED, LINES = 4, 12
MAPPED = "; a map says what such names mean (--map FILE)"


def report(found: Diagnosis) -> str:
    """Return the report as text; nothing in it can steer a terminal, nor feign a line."""
    parts = [headline(found), files(found), fixes(found), details(found), unknowns(found)]
    parts.append(what_if(found))
    return printable("\n\n".join(part for part in (*parts, remarks(found)) if part))


def headline(found: Diagnosis) -> str:
    bugs = f"{counted(found.faults, 'bug')} named" if found.faults else "no bug named"
    wrong = counted(found.unexplained, "wrong tap")
    left = f", {wrong} unexplained" if found.unexplained else ""
    if found.unexplained and all(one.tap in IDS for one in found.unexplained):
        left = ", what is wrong is unexplained"
    return (
        f"{HEADLINES[found.verdict]}  {escape(found.dump)}  as a port of  {escape(found.model)}\n"
        f"{bugs}{left}; {compared(found)}"
    )


def compared(found: Diagnosis) -> str:
    """Say what was compared; of a run from text to choices, each stage in a line of its own."""
    steps = f" over the prompt and {counted(found.steps, 'step')}" if found.steps else ""
    much = how_much(found.compared, len(found.unmatched), steps)
    taps = f"{much}, computed in {found.dtype}" if found.dtype else ""
    stages = found.judged_stages()
    if not stages:
        return taps
    first = next((one for one in stages if not one["right"]), None)
    rows = [
        (STAGES[one["stage"]], f"{one['compared']} {'taps' if one['stage'] == 'model' else 'ids'}",
         "right" if one["right"] else "wrong: the first to part" if one is first else "wrong")
        for one in stages
    ]  # fmt: skip
    return (f"{taps}\n" if taps else "judged from text to choices\n") + table(rows)


def how_much(compared: int, left: int, steps: str = "") -> str:
    """Say how much of a dump was compared; where most of it was not, that comes first."""
    if is_little(compared, left):
        return f"{compared} of the dump's {compared + left} tensors compared{steps}"
    apart = f", {counted(left, 'tensor')} not" if left else ""
    return f"{counted(compared, 'tap')} compared{steps}{apart}"


def is_little(compared: int, left: int) -> bool:
    """Say whether most of a dump was not compared."""
    return left > compared


def files(found: Diagnosis) -> str:
    """List what is otherwise with the port's config and weights: it comes before all else."""
    lines = [f"  config: {escape(str(one))}" for one in found.config]
    lines += [f"  weights: {escape(str(one))}" for one in found.weights]
    return "\n".join(["before any activation:", *lines]) if lines else ""


def fixes(found: Diagnosis) -> str:
    """Return the list that a porter works through, a line a bug: who prints it, folds it."""
    lines = [
        f"  {number}. {fault.id}{layers_of(fault)}: {escape(fault.fix)}"
        for number, fault in enumerate(found.faults, 1)
    ]
    return "\n".join(["fix:", *lines]) if lines else ""


def layers_of(fault: Named) -> str:
    return f" ({layers_said(fault.layers)})" if fault.layers else ""


def remark(one: Named) -> str:
    """Return one line of what is no bug: what the port does, in which form, and where."""
    form = f" [{one.variant}]" if one.variant else ""
    return f"{one.id}: {one.wrong}{form}{layers_of(one)}"


def details(found: Diagnosis) -> str:
    """Return why each bug is named: what the port does, and what is left of the error."""
    return "\n\n".join(map(detail, found.faults))


def detail(fault: Named) -> str:
    judged = fault.seen or (
        f"{fault.residual_before:.3g} of its size; with this bug in the reference "
        f"{fault.residual_after:.3g}, where rounding makes {fault.noise:.3g}"
    )
    if fault.votes:
        judged = (
            f"no more than rounding makes; but where right and wrong round apart, "
            f"{fault.votes['fault']} numbers follow this bug and {fault.votes['right']} do not"
        )
    rows = [
        ("the port", escape(fault.wrong) + (f"   [{fault.variant}]" if fault.variant else "")),
        ("should be", escape(fault.right)),
        ("seen at", grouped(fault.taps)),
        *([("put into", grouped(fault.put_into))] if fault.put_into else []),
        *([("tokens", fault.where)] if fault.where else []),
        ("counted" if fault.seen else "own error", escape(judged)),
    ]  # fmt: skip
    if fault.runner_up:
        rival = fault.runner_up
        rows.append(("runner-up", f"{rival['id']}, which leaves {rival['residual']:.3g}"))
    if fault.also_fits:
        rows.append(("fits as well", ", ".join(fault.also_fits)))
    rows.append(("confidence", f"{fault.confidence:.2f}"))
    return f"{fault.id}\n{table(rows)}"


def listed(names: list[str]) -> str:
    shown = ", ".join(escape(name) for name in names[:LISTED])
    return shown + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def unknowns(found: Diagnosis) -> str:
    """List what is wrong and has no name: the first taps, and how many more there are."""
    if not found.unexplained:
        return ""
    first = found.unexplained[:LINES]
    rows = [(escape(one.tap), size_of(one), shape_of(one)) for one in first]
    more = len(found.unexplained) - len(first)
    last = f"\nand {more} more, which --json lists" if more else ""
    return f"wrong, and like no bug that is known:\n{table(rows)}{last}{what_would_tell(first)}"


def what_would_tell(some: list[Unexplained]) -> str:
    """Say what the dump lacks inside of the first piece that holds anything."""
    one = next((one for one in some if one.inside), None)
    if one is None:
        return ""
    return f"\nto learn more of {escape(one.tap)}, dump what lies in it: {listed(one.inside)}"


def shape_of(one: Unexplained) -> str:
    return "; ".join(filter(None, (one.where, escape(one.shape))))


def size_of(one: Unexplained) -> str:
    if one.tap in IDS:
        return f"{one.own_error:.0%} of them"
    return f"own error {one.own_error:.3g}, noise {one.noise:.3g}"


def what_if(found: Diagnosis) -> str:
    """Return the error of the logits with each bug fixed."""
    if not found.counterfactual:
        return ""
    rows = [(all_of(row["fixed"]), f"{row['logits_error']:.3g}") for row in found.counterfactual]
    return "error of the logits, with this fixed:\n" + table(rows)


def all_of(fixed: list[str]) -> str:
    """Name one bug; more than one are all that were found."""
    return f"all {len(fixed)}" if len(fixed) > 1 else "".join(fixed) or "nothing"


def remarks(found: Diagnosis) -> str:
    lines = [f"  {escape(line)}" for line in found.conventions]
    if found.unmatched:
        little = is_little(found.compared, len(found.unmatched))
        lines.append(f"  not compared: {listed(found.unmatched)}" + MAPPED * little)
    return "\n".join(["notes:", *lines]) if lines else ""
