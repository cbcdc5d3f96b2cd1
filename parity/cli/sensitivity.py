"""What packing each kind of matrix costs: one kind at a time, the others as they are.

Told as the divergence of the next token's distribution, how often the likeliest token is the same,
and how many questions are still answered exactly. A model that is packed already is packed further.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import add_ignore_config, add_model, whole
from lockstep.parity.cli.output import emit
from lockstep.parity.cli.quantize import MODES, pair
from lockstep.parity.cli.writing import add_thinking

HELP = "what packing each kind of matrix costs"
EXAMPLE = "  lockstep sensitivity MODEL --questions questions.json --bits 3"
BY = ("kind", "layer", "module")


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--questions", metavar="FILE", help='a JSON list of {"question": text, "answer": text}'
    )
    parser.add_argument("--text", metavar="FILE", help="any text, cut into pieces")
    parser.add_argument(
        "--window", metavar="N", type=whole, default=256, help="tokens of a piece (default 256)"
    )
    parser.add_argument("--bits", type=whole, help="of a packed weight (default 4)")
    parser.add_argument(
        "--group-size",
        type=whole,
        metavar="N",
        help="weights that share a scale: 32, 64 or 128 (default 64)",
    )
    parser.add_argument("--mode", choices=MODES, default="affine", help="default: affine")
    parser.add_argument(
        "--rule", metavar="NAME=HOW", type=pair, action="append", default=[],
        help="modules that are packed otherwise, or keep (may be given again)",
    )  # fmt: skip
    parser.add_argument(
        "--by", choices=BY, default="kind", help="what is packed at a time (default kind)"
    )
    parser.add_argument(
        "--backend",
        choices=("fast", "mlx", "cpu"),
        default="cpu",
        help="what runs the model (default cpu)",
    )
    add_thinking(parser)
    add_ignore_config(parser)


def run(options: Namespace) -> int:
    from lockstep.fast.model import load
    from lockstep.parity.progress import Progress
    from lockstep.parity.quantizing import Rule, parse_packing, recipe_of
    from lockstep.parity.sensitivity import packing_costs

    rules = [Rule(name, parse_packing(how)) for name, how in options.rule]
    recipe = recipe_of(options.bits, options.group_size, options.mode, (), rules)
    ignored = options.ignore_config
    model = load(options.model, backend=options.backend, ignore_config=ignored)
    found = examples(options, model)
    with Progress(8) as progress:
        costs = packing_costs(model, found, recipe, by=options.by, progress=progress)
    costs.sort(key=lambda cost: -cost.kl.mean())
    document = {"model": str(options.model), "packing": str(recipe.default), "by": options.by,
                "examples": len(found), "costs": [cost.to_json() for cost in costs]}  # fmt: skip
    emit(options, lambda: document, lambda: table(document))
    return 0


def examples(options: Namespace, model: Any) -> list[Any]:
    from pathlib import Path

    from lockstep.parity.cli.loading import chat_tokenizer, check_ids, check_length
    from lockstep.parity.sensitivity import read_questions, read_text
    from lockstep.reference.checkpoint.errors import InputError
    from lockstep.reference.tokenizer.tokenizer import load_tokenizer

    if options.questions is None and options.text is None:
        raise InputError("--questions or --text", "says what to try the model on; give one")
    if not 2 <= options.window <= 1 << 16:
        raise InputError("--window", f"is {options.window}, but should be from 2 to {1 << 16}")
    tokenizer, found = load_tokenizer(model.checkpoint.path), []
    if options.questions is not None:
        chat, variables = chat_tokenizer(options, tokenizer)
        end = end_of_turn(chat, model.checkpoint.generation.eos_token_ids | chat.eos_token_ids)
        found += read_questions(Path(options.questions), chat, end=end, **variables)
    if options.text is not None:
        found += read_text(Path(options.text), tokenizer, window=options.window)
    for one in found:
        check_ids([*one.ids], model.checkpoint)
        check_length(len(one.ids), 0, model.checkpoint)
    return found


def end_of_turn(tokenizer: Any, ends: frozenset[int]) -> int | None:
    """Return the token that the template puts behind an answer, if it ends generation."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids = tokenizer.encode_chat(turns, add_generation_prompt=False)
    return next((one for one in reversed(ids) if one in ends), None)


def table(document: dict[str, Any]) -> str:
    """One line for each kind, the costliest first, and what can no longer be answered."""
    costs = document["costs"]
    wide = max(len(cost["kind"]) for cost in costs)
    asked, before = costs[0]["asked"], costs[0]["right_before"]
    head = f"{'packed':{wide}} {'matrices':>8} {'weights':>11}  {'KL, nats':>9} {'worst 1 %':>9}"
    lines = [f"{document['packing']}, each {document['by']} alone"]
    lines += [f"as it is, the model answers {before} of {asked} questions", ""] if asked else [""]
    lines.append(head + f"  {'same token':>10}" + ("  right" if asked else ""))
    for cost in costs:
        figures = f"{cost['kl_mean']:9.2g} {cost['kl_p99']:9.2g}  {cost['top1_agreement']:10.2%}"
        right = f"  {cost['right']:5}" if asked else ""
        lines.append(
            f"{cost['kind']:{wide}} {cost['matrices']:8} {cost['weights']:11,}  {figures}{right}"
        )
    for cost in costs:
        if cost["lost"]:
            more = f" and {len(cost['lost']) - 3} more" if len(cost["lost"]) > 3 else ""
            lines.append(f"lost by {cost['kind']}: {' | '.join(cost['lost'][:3])}{more}")
    return "\n".join(lines)
