"""The decoders by name, one a file: its options, what it makes, and what it counts.

A file `x.py` has `OPTIONS`, the names of its own options (all None unless they are given),
`add_arguments(group)`, which declares them, and `decoder(options)`, which returns a `Decoder`.
Nothing heavy is imported before a decoder is used: the command line reads all of these files.
"""

from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import Any

from lockstep.parity.decoders.request import Decoder

NAMES = ("autoregressive", "speculative", "wedlm")


def add_decoders(parser: ArgumentParser) -> None:
    """Declare --decoder, and the options of every decoder in a group of its own."""
    parser.add_argument(
        "--decoder",
        choices=NAMES,
        default=NAMES[0],
        help=f"how tokens are made (default {NAMES[0]})",
    )
    add_options(parser)


def add_options(parser: ArgumentParser) -> None:
    """Declare the options of every decoder, in a group of its own."""
    for name in NAMES:
        module = module_of(name)
        if module.OPTIONS:
            module.add_arguments(parser.add_argument_group(f"with --decoder {name}"))


def decoder_of(options: Namespace) -> Decoder:
    """Return the decoder that the options ask for.

    Raises: InputError for an option of another decoder, and for what the decoder refuses.
    """
    from lockstep.reference.checkpoint.errors import InputError

    for name in NAMES:
        given = [one for one in module_of(name).OPTIONS if getattr(options, one) is not None]
        if name != options.decoder and given:
            flag = given[0].replace("_", "-")
            raise InputError(f"--{flag}", f"goes with --decoder {name}")
    return module_of(options.decoder).decoder(options)


def module_of(name: str) -> Any:
    return import_module(f"lockstep.parity.decoders.{name}")
