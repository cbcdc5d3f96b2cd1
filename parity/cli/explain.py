"""Say which bugs are in the port that wrote a dump, all of them at once.

MODEL is the checkpoint that was ported, DUMP what the port computed of a prompt and of steps after
it: a trace, or safetensors, .npz or a folder of .npy with the outputs of modules, of layers, or the
logits alone.
Where it says its prompt, or which tokens it chose, those are judged too; a .json says nothing else.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from lockstep.parity.cli.arguments import add_adapter, add_ignore_config, ids
from lockstep.parity.cli.output import emit, warn
from lockstep.parity.cli.ranks import add_dumps_of_ranks, dumps_of_ranks

HELP = "name every bug of a port, from one dump"
EXAMPLE = (
    "  lockstep explain MODEL port.safetensors --tokens 9707,11,1879\n"
    "  lockstep trace MODEL --tokens 9707,11,1879 --decode 4 --backend cpu -o decoded.safetensors\n"
    "  lockstep explain MODEL decoded.safetensors\n"
    "  lockstep trace MODEL --tokens 9707,11,1879 --positions last:2 -o end.safetensors\n"
    "  lockstep explain MODEL end.safetensors\n"
    "  lockstep explain MODEL 'run.{rank}.safetensors' --tensor-parallel 2"
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the checkpoint that was ported")
    parser.add_argument("dump", metavar="DUMP", help="what the port computed")
    parser.add_argument(
        "--tokens", metavar="1,2,3", type=ids, help="the prompt, where the dump does not say it"
    )
    parser.add_argument("--prompt", metavar="TEXT", help="its text, which its ids are judged by")
    parser.add_argument("--chat", action="store_true", help="the text is a user's turn of a chat")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="what the port computes in"
    )
    parser.add_argument(
        "--map",
        metavar="FILE",
        help="lines `tap: its name in the dump`, or one JSON object of them",
    )
    parser.add_argument("--config", metavar="FILE", help="the port's config.json, compared first")
    parser.add_argument("--weights", metavar="FILE", help="the port's weights, compared first")
    add_adapter(parser)
    add_ignore_config(parser)
    add_dumps_of_ranks(parser, "DUMP")


def run(options: Namespace) -> int:
    from lockstep.parity.cli.loading import load
    from lockstep.parity.dumps.dump import open_dump
    from lockstep.parity.explain import explain
    from lockstep.parity.explaining.said.report import report
    from lockstep.parity.parallel.rank_files import check_whole
    from lockstep.parity.progress import Progress
    from lockstep.parity.torch_modules.folder import require_reference

    ranks = dumps_of_ranks(options, options.dump)
    dump = ranks[0] if ranks else check_whole(open_dump(options.dump, words=True))
    require_reference(options.model, "explain", "diff LEFT DUMP --model does not")
    model = load(options, "reference", "float32")
    told: dict[str, Any] = {
        "tokens": options.tokens,
        "prompt": options.prompt,
        "chat": options.chat,
        "dtype": options.dtype,
        "names": options.map,
        "config": options.config,
        "weights": options.weights,
        "doubt": lambda line: warn([line]),
    }
    with Progress(2 * len(dump.shapes)) as progress:
        if ranks:
            from lockstep.parity.parallel.explain import explain_ranks

            found = explain_ranks(model, ranks, path=options.dump, progress=progress, **told)
        else:
            found = explain(model, dump, progress=progress, **told)
    emit(options, found.to_json, lambda: report(found))
    return 0 if found.verdict == "clean" else 1
