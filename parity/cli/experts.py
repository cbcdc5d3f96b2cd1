"""`--expert-budget`: experts that stay on the disk, and what reading them took."""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import size


def add_expert_budget(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--expert-budget", metavar="SIZE", type=size,
        help="leave experts on the disk, and hold so much of them in memory: 2GB",
    )  # fmt: skip


def check_expert_budget(options: Namespace) -> None:
    from lockstep.reference.checkpoint.errors import InputError

    if options.expert_budget is not None and options.backend == "reference":
        what = "goes with --backend fast, mlx or cpu: the reference reads every expert anew"
        raise InputError("--expert-budget", what)


def report_of_experts(model: Any) -> dict[str, Any] | None:
    """Return what reading experts from the disk took; None if all are in memory."""
    streamed = getattr(model, "streamed", None)
    return None if streamed is None else streamed.report()


def said_of_experts(experts: dict[str, Any] | None) -> str:
    """Return in words how experts that stay on the disk came: nothing if they are in memory."""
    from lockstep.parity.cli.output import in_units

    if experts is None or not experts["visits"]:
        return ""
    there = f"{experts['hits'] / experts['visits']:.0%} of {experts['visits']:,} visited experts"
    read = f"{in_units(experts['bytes_read'])} read"
    return f"{there} were there, {read}, {experts['stalled_s']:.2f} s waited"
