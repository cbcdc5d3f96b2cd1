"""Show what a checkpoint is: architecture, quantisation, parameters, and the memory it takes."""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import add_model
from lockstep.parity.cli.output import emit, table, warn

HELP = "architecture, quantisation per tensor, parameters, memory"
EXAMPLE = "  lockstep inspect MODEL"


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor")


def run(options: Namespace) -> int:
    from lockstep.parity.inspection import inspection
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(options.model, ignore_config=options.ignore_config)
    warn(checkpoint.warnings)
    found = inspection(checkpoint)
    emit(options, lambda: found, lambda: described(found, tensors=options.tensors))
    return 0


def described(found: dict[str, Any], *, tensors: bool) -> str:
    """Lay an inspection out for a person."""
    config, memory = found["config"], found["memory"]
    shape = (
        f"{config['num_hidden_layers']} layers, width {config['hidden_size']}, "
        f"{config['num_attention_heads']} heads of {config['head_dim']} "
        f"over {config['num_key_value_heads']} key/value heads"
    )
    rows = [
        ("architecture", found["architecture"]),
        ("shape", shape),
        ("vocabulary", str(config["vocab_size"])),
        ("parameters", f"{found['parameters']:,} in {len(found['tensors'])} tensors"),
        ("stored", f"{size(memory['weights'])}, {found['bits_per_weight']:.2f} bits a weight"),
        ("cache", f"{size(memory['cache_per_token'])} a token in float32"),
        ("reference", f"{size(memory['reference'])} for 128 tokens, beside Python itself"),
        ("fast", f"{size(memory['fast'])} for 128 tokens, beside Python itself"),
    ]
    formats = [
        (name, f"{group['tensors']} tensors", size(group["nbytes"]))
        for name, group in found["formats"].items()
    ]
    parts = [table(rows), table(formats, right=frozenset([1, 2]))]
    if tensors:
        listed = [(t["name"], str(t["shape"]), t["format"]) for t in found["tensors"]]
        parts.append(table(listed))
    return "\n\n".join(parts)


def size(count: float) -> str:
    """Return a number of bytes with the unit that suits it."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
