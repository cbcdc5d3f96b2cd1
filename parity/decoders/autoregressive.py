"""One token after another, each fed back."""

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from lockstep.parity.decoders.request import Request, decoding

OPTIONS = ()


class Autoregressive:
    """The decoder that every other one is held against."""

    beyond = 0
    in_order = True
    from_prompt = 1
    ends = ()

    def tokens(self, request: Request) -> Iterator[int]:
        return decoding(request.model, "autoregressive").generate(
            request.model,
            request.new,
            max_tokens=request.max_tokens,
            stop=request.stop,
            choose=chooser(request, decoding(request.model, "sampling")),
            cache=request.cache,
            chunk=request.chunk,
            watch=request.watch,
        )

    def forget(self) -> None:
        """Nothing is kept."""

    def counts(self) -> dict[str, Any]:
        return {"name": "autoregressive"}

    def said(self) -> str:
        return ""


def chooser(request: Request, sampling: Any) -> Any:
    """Return what chooses a token from its logits: greedily, or with a memory of the text."""
    if request.sampling.is_argmax:
        return sampling.greedy
    choose = sampling.Sampler(request.sampling, request.uniforms, request.tokens)

    def chosen(logits: Any) -> int:
        request.prompt_is_read()
        return choose(logits)

    return chosen


def decoder(options: Namespace) -> Autoregressive:
    return Autoregressive()
