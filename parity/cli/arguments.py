"""Arguments that several commands share, in a strict grammar: ASCII digits and nothing clever."""

import argparse
import re

DTYPES = ("float64", "float32", "bfloat16", "float16")
BACKENDS = ("reference", "fast", "mlx", "cpu")
WHOLE = re.compile(r"[0-9]{1,18}")
# As a person writes ids, `1,2,3`, or as Python and JSON print them, `[1, 2, 3]`.
IDS = re.compile(r"[0-9]{1,18}(, ?[0-9]{1,18})*")
SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(kB|MB|GB|TB)")
UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")


def whole(text: str) -> int:
    if not WHOLE.fullmatch(text):
        raise refusal(text, "a whole number from 0 to 999999999999999999")
    return int(text)


def above_zero(text: str) -> int:
    found = whole(text)
    if not found:
        raise refusal(text, "a whole number from 1 on")
    return found


def size(text: str) -> int:
    """Return bytes: 2GB is two thousand million of them."""
    found = SIZE.fullmatch(text)
    if not found:
        raise refusal(text, "a size such as 500MB or 2.5GB")
    return round(float(found[1]) * UNITS[found[2]])


def number(text: str) -> float:
    if not NUMBER.fullmatch(text):
        raise refusal(text, "a decimal number")
    return float(text)


def ids(text: str) -> list[int]:
    plain = text[1:-1] if text[:1] + text[-1:] == "[]" else text
    if not IDS.fullmatch(plain):
        raise refusal(text, "a list of token ids such as 1,2,3")
    return [int(part) for part in plain.split(",")]


def refusal(text: str, wanted: str) -> argparse.ArgumentTypeError:
    from lockstep.reference.checkpoint.errors import show

    return argparse.ArgumentTypeError(f"{show(text, 60)} is not {wanted}")


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a model's folder, a GGUF file, or a hub name in the local cache",
    )


def add_ignore_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ignore-config", metavar="KEY", action="append", default=[],
        help="let an unknown key of config.json pass (may be given again)",
    )  # fmt: skip


def add_adapter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--adapter",
        metavar="DIR",
        help="a LoRA or DoRA adapter of mlx-lm or PEFT, run on the model",
    )


def add_prompt(parser: argparse.ArgumentParser, *, batch: bool = False) -> None:
    """Take a prompt; with `batch` several lists of ids, which are then `tokens` all the same."""
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="text, tokenized as the model does it")
    again = "; given again, the rows of a batch" if batch else ""
    prompt.add_argument(
        "--tokens", metavar="1,2,3", type=ids, action="append" if batch else "store",
        help=f"token ids, taken as they are{again}",
    )  # fmt: skip


def add_backend(
    parser: argparse.ArgumentParser, *, default: str, dtype: str, also: tuple[str, ...] = ()
) -> None:
    parser.add_argument(
        "--backend", choices=(*BACKENDS, *also), default=default,
        help=f"what runs the model; fast is the better of mlx and cpu here (default {default})",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=DTYPES,
        help=f"what is computed in, float64 on the reference alone (default {dtype})",
    )  # fmt: skip


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Take a choice of taps, and of tokens of the prompt."""
    parser.add_argument(
        "--taps", metavar="GLOB,...",
        help="only taps of these names, such as '*.mlp.*,logits'; @FILE has a glob a line",
    )  # fmt: skip
    parser.add_argument(
        "--positions", metavar="PLACES",
        help="only these tokens of the prompt: last:8, first:8, 100:108, 17, or a list of these",
    )  # fmt: skip
