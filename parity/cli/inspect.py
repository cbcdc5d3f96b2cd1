"""Show what a checkpoint is: architecture, quantisation, parameters, and the memory it takes."""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import add_ignore_config, add_model
from lockstep.parity.cli.output import counted, emit, in_units, table, warn

HELP = "architecture, quantisation per tensor, parameters, memory"
EXAMPLE = "  lockstep inspect MODEL"


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--tensors", action="store_true", help="list every tensor with its shape and format"
    )
    add_ignore_config(parser)


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
    slides = config.get("sliding_window")
    window = f", sliding window {slides}" if slides else ""
    tied = "tied to the embedding" if config["tie_word_embeddings"] else "of its own"
    rows = [
        ("architecture", f"{found['architecture']}: {layers(config)}"),
        *experts(config),
        ("vocabulary", f"{config['vocab_size']:,} tokens, head {tied}"),
        ("context", f"{found['context']:,} tokens{window}"),
        ("parameters", f"{found['parameters']:,} in {counted(found['tensors'], 'tensor')}"),
        ("weights", f"{in_units(memory['weights'])} stored, "
                    f"{found['bits_per_weight']:.2f} bits each"),
        ("kv cache", f"{in_units(memory['cache_per_token'])} for each token, in float32"),
        ("memory", f"about {in_units(memory['reference'])} on the reference, "
                   f"{in_units(memory['fast'])} on mlx and {in_units(memory['cpu'])} on cpu, "
                   f"for {memory['tokens']} tokens in float32"),
    ]  # fmt: skip
    formats = [("stored as", "tensors", "size", "modules")]
    formats += [
        (name, str(group["tensors"]), in_units(group["nbytes"]), kinds(group["modules"]))
        for name, group in found["formats"].items()
    ]
    parts = [table(rows), table(formats, right=frozenset([1, 2]))]
    if tensors:
        listed = [("tensor", "shape", "stored as")]
        listed += [(t["name"], str(t["shape"]), t["format"]) for t in found["tensors"]]
        parts.append(table(listed))
    return "\n\n".join(parts)


def layers(config: dict[str, Any]) -> str:
    """Tell how many layers there are and what their heads are, which full layers may have wider."""
    shape = (
        f"{counted(config['num_hidden_layers'], 'layer')}, width {config['hidden_size']}, "
        f"{counted(config['num_attention_heads'], 'head')} of {config['head_dim']} "
        f"over {counted(config['num_key_value_heads'], 'key/value head')}"
    )
    if "global_head_dim" not in config:
        return shape
    wide, groups = config["global_head_dim"], config["num_global_key_value_heads"]
    return f"{shape}; of {wide} over {groups} in full layers"


def experts(config: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a row for a model with experts, none for another. Its key has two spellings."""
    if not config.get("num_experts"):
        return []
    work = config.get("num_experts_per_tok", config.get("top_k_experts"))
    return [("experts", f"{config['num_experts']} in a sparse layer, {work} for each token")]


def kinds(modules: dict[str, int]) -> str:
    """Name the first few kinds of modules, those that are in several layers with their number."""
    names = [name if count == 1 else f"{name} x{count}" for name, count in modules.items()]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
