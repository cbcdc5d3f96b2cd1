"""A draft that runs ahead, and a model that keeps what it would have said itself."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from lockstep.parity.decoders.request import Request, decoding

OPTIONS = ("draft", "draft_tokens", "ngram")
LOOKUP = "lookup"
DRAFT_TOKENS, NGRAM = 4, 3


def add_arguments(group: Any) -> None:
    from lockstep.parity.cli.arguments import above_zero

    group.add_argument(
        "--draft", metavar="MODEL", help="a smaller model with the same tokens, on the model's "
        "backend and in its dtype; or lookup: what followed the last tokens when they were there "
        "before",
    )  # fmt: skip
    group.add_argument(
        "--draft-tokens", metavar="N", type=above_zero,
        help=f"how far the draft runs ahead (default {DRAFT_TOKENS})",
    )  # fmt: skip
    group.add_argument(
        "--ngram", metavar="N", type=above_zero,
        help=f"how many last tokens lookup looks for, and then fewer (default {NGRAM})",
    )  # fmt: skip


def decoder(options: Namespace) -> Speculative:
    """Return the decoder. Raises: InputError for a draft that is missing or has other tokens."""
    from lockstep.reference.checkpoint.checkpoint import open_checkpoint
    from lockstep.reference.checkpoint.errors import InputError
    from lockstep.reference.scheduling.drafting import check_activations, check_kind

    check_kind(options.cache)
    check_activations(options.activations)
    if options.draft is None:
        raise InputError("--decoder speculative", "needs --draft MODEL, or --draft lookup")
    if options.draft != LOOKUP:
        if options.ngram is not None:
            raise InputError("--ngram", "goes with --draft lookup")
        opened = [open_checkpoint(path, ignore_config=options.ignore_config)
                  for path in (options.model, options.draft)]  # fmt: skip
        check_same_tokens(*opened)
    return Speculative(
        options.draft,
        draft_tokens=options.draft_tokens or DRAFT_TOKENS,
        ngram=options.ngram or NGRAM,
        ignore_config=options.ignore_config,
    )


def check_same_tokens(model: Any, draft: Any) -> None:
    """Refuse a draft whose ids mean something else. Without tokenizers the vocabularies count."""
    from lockstep.parity.generating.generation import tokenizer_of
    from lockstep.reference.checkpoint.errors import InputError

    texts = [tokenizer_of(one) for one in (model, draft)]
    if None in texts:
        sizes = [one.config.vocab_size for one in (model, draft)]
        if sizes[0] != sizes[1]:
            what = f"a vocabulary of {sizes[1]}, but the model's is {sizes[0]}"
            raise InputError(draft.path, what)
        return
    ours, theirs = (one.parts[0].get_vocab(with_added_tokens=True) for one in texts)
    if ours != theirs:
        what = "its tokenizer has other tokens than the model's, so it cannot be its draft"
        raise InputError(draft.path, what)


class Speculative:
    """The decoder, and its draft, which is loaded with the first text.

    What the draft has read of one text it keeps for the next, as a chat's turns go on.
    """

    beyond = 0  # a round never drafts what there is no room for
    in_order = True
    from_prompt = 1
    ends = ()

    def __init__(self, draft: str, *, draft_tokens: int, ngram: int, ignore_config: Any = ()):
        self.draft, self.draft_tokens, self.ngram = draft, draft_tokens, ngram
        self.ignore_config = ignore_config
        self.loaded: Any = None
        self.reader: Any = None  # the draft's, with the cache of the last text
        self.counted: Any = None

    def tokens(self, request: Request) -> Iterator[int]:
        from lockstep.reference.scheduling.speculating import Speculated

        module = decoding(request.model, "speculative")
        self.counted = Speculated()
        return module.generate(
            request.model,
            request.tokens,
            draft=self.made_draft(module, request),
            draft_tokens=self.draft_tokens,
            max_tokens=request.max_tokens,
            stop=request.stop,
            sampling=request.sampling,
            uniforms=request.uniforms,
            cache=request.cache,
            chunk=request.chunk,
            watch=request.watch,
            counts=self.counted,
        )

    def made_draft(self, module: Any, request: Request) -> Any:
        vocabulary = request.model.config.vocab_size
        if self.draft == LOOKUP:
            from lockstep.reference.scheduling.prompt_lookup import LookupDraft

            return LookupDraft(vocabulary=vocabulary, longest=self.ngram)
        if self.loaded is None:
            self.loaded = loaded(self.draft, request.model, self.ignore_config)
        made = module.ModelDraft(
            self.loaded,
            vocabulary=vocabulary,
            sampling=request.sampling,
            uniforms=request.uniforms,
            chunk=request.chunk,
            watch=request.watch,
            reader=self.kept_reader(request.tokens),
        )
        self.reader = made.reader
        return made

    def kept_reader(self, tokens: list[int]) -> Any:
        """Return the draft's reader, cut back to what this text has of the last, or None."""
        from lockstep.reference.checkpoint.rope_scaling import steady_length
        from lockstep.reference.scheduling.feeding import still_good

        reader = self.reader
        if reader is None or reader.torn:
            return None
        keep = still_good(reader.held, tokens, steady_length(self.loaded.config))
        reader.cut_back(keep)  # which its cache can: it has dropped nothing
        return reader if keep else None

    def forget(self) -> None:
        self.reader = None

    def counts(self) -> dict[str, Any]:
        from lockstep.parity.decoders.counting import ratio

        found = self.counted
        return {
            "name": "speculative",
            "draft": self.draft,
            "draft_tokens": self.draft_tokens,
            "forwards": found.forwards,
            "drafted": found.drafted,
            "accepted": found.accepted,
            "acceptance": ratio(found.accepted, found.drafted),
            "tokens_per_forward": ratio(found.made, found.forwards),
        }

    def said(self) -> str:
        found = self.counted
        if not found.forwards:
            return ""
        return (
            f"{found.accepted} of {found.drafted} drafted tokens kept, "
            f"{found.made / found.forwards:.2f} tokens a forward pass"
        )


def loaded(path: str, model: Any, ignore_config: Any) -> Any:
    """Load the draft to run as the model does: on its backend, in its dtype."""
    if model.runs_on == "reference":
        from lockstep.reference.model import load

        return load(path, dtype=model.dtype, ignore_config=ignore_config)
    from lockstep.fast.model import load as load_fast

    return load_fast(
        path, dtype=model.dtype, backend=model.backend.name, ignore_config=ignore_config
    )
