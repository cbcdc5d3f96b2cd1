"""Show the token ids of a text, as the model's own tokenizer makes them."""

from argparse import ArgumentParser, Namespace

from lockstep.parity.cli.arguments import add_model
from lockstep.parity.cli.output import counted, emit, table

HELP = "show the token ids of a text"
EXAMPLE = '  lockstep tokenize MODEL --prompt "What is 2+2?" --chat'


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--prompt", metavar="TEXT", required=True, help="the text")
    parser.add_argument("--chat", action="store_true", help="as a user's turn in the chat template")


def run(options: Namespace) -> int:
    from lockstep.reference.checkpoint.errors import show
    from lockstep.reference.checkpoint.resolve import resolve_model
    from lockstep.reference.tokenizer.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve_model(options.model))
    message = [{"role": "user", "content": options.prompt}]
    text = tokenizer.render_chat(message) if options.chat else options.prompt
    tokens = tokenizer.encode_chat(message) if options.chat else tokenizer.encode(text)
    pieces = [tokenizer.token(token) for token in tokens]
    rows = [(str(token), show(piece)) for token, piece in zip(tokens, pieces, strict=True)]
    document = {"text": text, "tokens": tokens, "pieces": pieces}
    emit(
        options,
        lambda: document,
        lambda: f"{table(rows, right=frozenset([0]))}\n{counted(tokens, 'token')}".lstrip("\n"),
    )
    return 0
