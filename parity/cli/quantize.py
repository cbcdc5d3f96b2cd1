"""Write a model with packed weights: a folder such as mlx-community has them, which mlx-lm loads.

Codes and scales are those of mlx.core.quantize to the bit; what is packed, and routers in 8 bits,
is as mlx-lm's converter has it. Names of modules match by their parts: down_proj, layers.0, mlp.
"""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from lockstep.parity.cli.arguments import add_ignore_config, whole
from lockstep.parity.cli.output import counted, emit, in_units, printable, warn

HELP = "write a model with packed weights"
EXAMPLE = "  lockstep quantize MODEL packed --bits 4 --keep lm_head --rule down_proj=6"
MODES = ("affine", "mxfp4", "mxfp8", "nvfp4")
MIXED = ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a folder of dense weights")
    parser.add_argument(
        "target", metavar="TARGET", help="the folder to make; one that is there must be empty"
    )
    parser.add_argument("--bits", type=whole, help="of a code: 2, 3, 4, 5, 6 or 8 (default 4)")
    parser.add_argument(
        "--group-size", type=whole, metavar="N",
        help="weights that share a scale: 32, 64 or 128 (default 64)",
    )  # fmt: skip
    parser.add_argument("--mode", choices=MODES, default="affine", help="default: affine")
    parser.add_argument(
        "--keep", metavar="A,B", type=names, default=[], help="modules that stay dense"
    )
    parser.add_argument(
        "--rule", metavar="NAME=HOW", type=pair, action="append", default=[],
        help="modules that are packed otherwise: keep, BITS, BITS/GROUP or a mode; the first that "
        "fits decides (may be given again)",
    )  # fmt: skip
    parser.add_argument("--recipe", choices=MIXED, help="one of mlx-lm's, instead of --bits")
    add_ignore_config(parser)


def names(text: str) -> list[str]:
    if not all(parts := text.split(",")):
        raise ArgumentTypeError("is not a list of names such as lm_head,embed_tokens")
    return parts


def pair(text: str) -> tuple[str, str]:
    name, sign, how = text.rpartition("=")
    if not sign or not name:
        raise ArgumentTypeError("is not NAME=HOW, such as down_proj=6/64")
    return name, how


def run(options: Namespace) -> int:
    from lockstep.parity.cli.fuse import check_json
    from lockstep.parity.quantizing import quantize

    check_json(options)
    made = quantize(
        options.source, options.target, recipe(options), ignore_config=options.ignore_config
    )
    warn(made["warnings"])
    emit(options, lambda: made, lambda: printable(described(made)))
    return 0


def recipe(options: Namespace) -> Any:
    from lockstep.parity.quantizing import Rule, mixed, parse_packing, recipe_of
    from lockstep.reference.checkpoint.errors import InputError

    rules = [Rule(name, parse_packing(how)) for name, how in options.rule]
    if options.recipe is None:
        return recipe_of(options.bits, options.group_size, options.mode, options.keep, rules)
    if options.bits is not None or options.mode != "affine":
        raise InputError("--recipe", "says the bits itself; leave out --bits and --mode")
    return mixed(options.recipe, options.group_size, options.keep, rules)


def described(made: dict[str, Any]) -> str:
    packed = made["packed"].items()
    lines = [f"{counted(count, 'matrix', 'matrices')} packed with {how}" for how, count in packed]
    if made["kept"]:
        lines.append(f"{len(made['kept'])} stay dense: {', '.join(made['kept'][:4])}")
        lines[-1] += f" and {len(made['kept']) - 4} more" if len(made["kept"]) > 4 else ""
    before, after = in_units(made["bytes_before"]), in_units(made["bytes"])
    lines.append(f"{before} became {after}, {made['bits_per_weight']:.2f} bits each")
    return "\n".join([*lines, f"-> {made['target']}"])
