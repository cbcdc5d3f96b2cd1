"""WeDLM's diffusion: masks are filled in where the model is sure, in any order."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _ArgumentGroup
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from lockstep.parity.cli.arguments import number, refusal, whole
from lockstep.parity.decoders.autoregressive import chooser
from lockstep.parity.decoders.request import Request, decoding

if TYPE_CHECKING:
    from lockstep.reference.checkpoint.checkpoint import Checkpoint
    from lockstep.reference.scheduling.diffusion_options import DiffusionOptions, Variant
    from lockstep.reference.scheduling.diffusion_window import Step
    from lockstep.reference.scheduling.sampling_options import SamplingOptions

OPTIONS = ("wedlm", "window", "threshold", "position_penalty", "penalty", "mask_id", "steps")
VARIANTS = ("tencent", "mlx-port")
DROPPED = "takes masks back in every step, which a cache that drops tokens does not do"
PENALTIES = ("first-mask", "window", "tempered")
ENDS = ("<|im_end|>", "<|endoftext|>")  # at which WeDLM's engine stops, whatever the files say


def add_arguments(group: ArgumentParser | _ArgumentGroup) -> None:
    group.add_argument(
        "--wedlm", choices=VARIANTS, metavar="WAY",
        help="as whose code has it: %(choices)s (default tencent)",
    )  # fmt: skip
    group.add_argument(
        "--window", metavar="W", type=whole, help="how many masks are open (default 16)"
    )
    group.add_argument(
        "--threshold", metavar="H", type=nats,
        help="fill in all masks of less entropy, in nats; none: the surest one a step (default 0.4 "
        "of tencent, 0.3 of mlx-port)",
    )  # fmt: skip
    group.add_argument(
        "--position-penalty", metavar="X", type=number,
        help="added to the entropy for each token of distance (default 0.02 and 0.01)",
    )  # fmt: skip
    group.add_argument(
        "--penalty", choices=PENALTIES, metavar="RULE",
        help="distance from what: %(choices)s; the last is first-mask, with the entropy taken at "
        "the temperature (default first-mask and window)",
    )  # fmt: skip
    group.add_argument(
        "--mask-id", metavar="ID", type=whole,
        help="the mask's token id (default that of the config, or 151665)",
    )  # fmt: skip
    group.add_argument("--steps", action="store_true", default=None, help="show what each step did")


def nats(text: str) -> float:
    """Read a threshold; "none" is infinite, which nothing else says."""
    if text == "none":
        return float("inf")
    found = number(text)
    if found < 0:
        raise refusal(text, "a number from 0 on, or none")
    return found


class Wedlm:
    """The decoder with its settings. `sampling` replaces the request's."""

    in_order = True  # between steps: what is not final is taken back at the end of each
    from_prompt = 0

    def __init__(self, options: DiffusionOptions, sampling: SamplingOptions, *, steps: bool):
        from lockstep.parity.decoders.counting import Counts

        self.options, self.sampling = options, sampling
        self.beyond = 2 * options.window
        self.ends = ENDS if options.variant.stops else ()
        self.steps: list[Step] | None = [] if steps else None
        self.counted, self.kept = Counts(), 0

    def tokens(self, request: Request) -> Iterator[int]:
        from lockstep.parity.decoders.counting import Counts

        self.counted, self.kept = Counts(), 0
        self.steps = None if self.steps is None else []
        check_cache(request.cache)
        sampling = decoding(request.model, "sampling")
        made = decoding(request.model, "diffusion").generate(
            request.model,
            request.new,
            options=self.options,
            room=room_of(request),
            max_tokens=request.max_tokens,
            stop=request.stop,
            choose=chooser(replace(request, sampling=self.sampling), sampling),
            cache=request.cache,
            chunk=request.chunk,
            watch=request.watch,
            read=request.prompt_is_read,
            told=self.note,
        )
        for self.kept, token in enumerate(made, 1):
            yield token

    def note(self, step: Step) -> None:
        self.counted(step)
        if self.steps is not None:
            self.steps.append(step)

    def forget(self) -> None:
        """Nothing is kept."""

    def counts(self) -> dict[str, Any]:
        options = self.options
        settings = {"name": "wedlm"} | asdict(options) | {"variant": options.variant.name}
        steps = {} if self.steps is None else {"trace": [asdict(step) for step in self.steps]}
        return settings | self.counted.document(self.kept) | steps

    def said(self) -> str:
        if not self.kept:
            return ""
        found = self.counted.document(self.kept)
        ratio, share = found["tokens_per_forward"], found["p_cache"]
        return f"{ratio:.2f} tokens a forward pass, p_cache {share:.2f}"

    def table(self) -> str:
        """Return what each step did, laid out, if that was asked for."""
        from lockstep.parity.decoders.wedlm_table import step_table

        return "" if self.steps is None else step_table(self.steps, self.options.mask_id)


def decoder(options: Namespace) -> Wedlm:
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint
    from lockstep.reference.checkpoint.errors import InputError

    if (getattr(options, "cache", None) or "").startswith("rotating"):
        raise InputError("--decoder wedlm", DROPPED)
    checkpoint = open_checkpoint(options.model, ignore_config=options.ignore_config)
    mask, sampling = mask_of(options.mask_id, checkpoint), sampling_for(options)
    chosen = diffusion_of(options, mask, sampling.heat)
    return Wedlm(chosen, sampling, steps=bool(options.steps))


def diffusion_of(options: Namespace, mask: int, heat: float) -> DiffusionOptions:
    """Return the settings, those of the variant where none are given; `heat` is the sampler's."""
    from lockstep.reference.scheduling.diffusion_options import DiffusionOptions

    way = way_of(options)
    threshold = way.threshold if options.threshold is None else options.threshold
    penalty = options.penalty or way.penalty
    return DiffusionOptions(
        mask,
        way,
        window=16 if options.window is None else options.window,
        threshold=None if threshold == float("inf") else threshold,
        position_penalty=first(options.position_penalty, way.position_penalty),
        penalty=penalty,
        temperature=heat if penalty == "tempered" else 1.0,
    )


def way_of(options: Namespace) -> Variant:
    from lockstep.reference.scheduling.diffusion_options import variant_named

    return variant_named(options.wedlm or VARIANTS[0])


def first(given: float | None, own: float) -> float:
    return own if given is None else given


def sampling_for(options: Namespace) -> SamplingOptions:
    """Return the sampler's settings, by the variant's own rules unless others are asked for.

    Raises: InputError for penalties of earlier tokens: what is earlier has no order here.
    """
    from lockstep.parity.cli.sampling import sampling_of
    from lockstep.reference.checkpoint.errors import InputError

    asked = Namespace(**vars(options))
    asked.semantics = options.semantics or way_of(options).semantics
    found = sampling_of(asked)
    if found.looks_back:
        what = "takes no penalties of earlier tokens: they are filled in out of order"
        raise InputError("--decoder wedlm", what)
    return found


def mask_of(given: int | None, checkpoint: Checkpoint) -> int:
    """Return the mask's id: the given one, the config's, or that of WeDLM's engine.

    Raises: InputError if the model is no WeDLM and none is given, if layers slide, or if the id is
    beyond the vocabulary.
    """
    from lockstep.reference.checkpoint.errors import InputError
    from lockstep.reference.scheduling.diffusion_options import MASK_ID
    from lockstep.reference.stores.kinds import layer_kinds

    name, size = checkpoint.architecture, checkpoint.config.vocab_size
    own = checkpoint.generation.mask_token_id
    # A GGUF file of WeDLM is one of Qwen's that names a mask, which Qwen's own do not.
    if given is None and name != "wedlm" and (own is None or name not in ("qwen3", "qwen2")):
        what = f"this is {name}, which was not trained for it; --mask-id ID tries it all the same"
        raise InputError("--decoder wedlm", what)
    if "sliding_attention" in layer_kinds(checkpoint.config):
        raise InputError("--decoder wedlm", "layers of this model see a sliding window")
    mask = given if given is not None else MASK_ID if own is None else own
    if mask >= size:
        what = f"the mask's id is {mask}, but should be 0..{size - 1}; --mask-id ID says another"
        raise InputError("--decoder wedlm", what)
    return mask


def check_cache(cache: Any) -> None:
    """Raises: InputError if a cache drops tokens: masks are taken back in every step."""
    from lockstep.reference.checkpoint.errors import InputError

    if cache.positions.rings:
        raise InputError("--decoder wedlm", DROPPED)


def room_of(request: Request) -> int:
    """Return how many positions there are: the context's, or the cache's if it has fewer."""
    from lockstep.reference.checkpoint.rope_scaling import context_length

    context, room = context_length(request.model.config), request.cache.positions.room
    return context if room is None else min(context, room)
