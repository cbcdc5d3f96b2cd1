"""Prompt caches in files, for `generate`: read before a text begins, written when it has ended."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.parity.decoders.request import Decoder
    from lockstep.parity.generating.generation import Generation


REFUSED = -1  # tokens, as a rank says that could not use its file


def add_cache_files(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--load-cache", metavar="FILE",
        help="go on from a saved cache: what the prompt begins with is not read again",
    )  # fmt: skip
    parser.add_argument(
        "--save-cache", metavar="FILE",
        help="write the keys and values of prompt and answer to FILE when all is done; with "
        "--tensor-parallel a file for each rank, by {rank} in its name",
    )  # fmt: skip


class CacheFiles:
    """The options of `add_cache_files`. What can be refused is refused before a model loads."""

    def __init__(self, options: Namespace, decoder: Decoder):
        self.source, self.target = options.load_cache, options.save_cache
        self.ranks = getattr(options, "tensor_parallel", 1)
        self.taken: int | None = None  # how many tokens came from the file
        self.cache: Any = None
        if (self.source or self.target) is not None:
            check_order(decoder)
        for rank in range(self.ranks):
            if self.source is not None:
                check_source(self.of_rank(self.source, rank), options)
            if self.target is not None:
                check_target(self.of_rank(self.target, rank))
        if self.target is not None:
            check_read(options.max_tokens)

    def of_rank(self, name: str, rank: int) -> str:
        """Return the file of a rank: each has one, of its own heads."""
        return name if self.ranks == 1 else name.replace("{rank}", str(rank))

    def begin(self, generation: Generation, tokens: list[int], max_tokens: int) -> Any:
        """Return the cache to write with: one of the file, cut back, or an empty one."""
        self.cache = None
        if self.source is not None:
            self.cache = self.loaded(generation, tokens, max_tokens)
            self.taken = 0 if self.cache is None else self.cache.positions.length
        if self.cache is None and self.target is not None:
            self.cache = generation.made_cache(generation.longest(tokens, max_tokens))
        return self.cache

    def loaded(self, generation: Generation, tokens: list[int], max_tokens: int) -> Any:
        """Read the file; a text that begins otherwise gets an empty cache of the same kind."""
        from lockstep.parity.prompt_cache import load_cache, reused
        from lockstep.reference.checkpoint.errors import InputError

        room = generation.fed(generation.longest(tokens, max_tokens))
        group = getattr(generation.model, "group", None)
        source = self.of_rank(self.source, 0 if group is None else group.rank)
        try:
            loaded = load_cache(source, generation.model, room=room)
        except InputError:
            if group is not None:
                gathered(group, REFUSED)  # or the others would wait for this rank, which ends
            raise
        cache = reused(loaded, tokens)
        if group is not None:
            check_alike(group, self.source, 0 if cache is None else cache.positions.length)
        if cache is None:
            name, told = loaded.cache.name, loaded.cache.options
            cache = generation.model.make_cache(name, **vars(told))
        return cache

    def end(self, generation: Generation, tokens: list[int], made: list[int]) -> None:
        """Write what the model has read: all but what was never fed."""
        if self.target is None:
            return
        from lockstep.parity.prompt_cache import save_cache

        fed = [*tokens, *made][: self.cache.positions.length]
        group = getattr(generation.model, "group", None)
        target = self.of_rank(self.target, 0 if group is None else group.rank)
        save_cache(target, generation.model, self.cache, fed)

    def said(self, prompt: int) -> str:
        """Return a phrase for the line at the end, "" if no file was read."""
        return "" if self.taken is None else f"{self.taken} of {prompt} from the cache"


def check_alike(group: Any, source: str, taken: int) -> None:
    """Refuse files of which one rank can use more than another: they would part at once.

    Where another rank refused its own, this one ends without a word: that one says why.
    """
    from lockstep.fast.parallel.lost import end_alone
    from lockstep.reference.checkpoint.errors import InputError

    counts = gathered(group, taken)
    if REFUSED in counts:
        end_alone()
    if len(set(counts)) > 1:
        said = ", ".join(map(str, counts))
        raise InputError(source, f"the ranks' files are not of one text: they have {said} tokens")


def gathered(group: Any, taken: int) -> list[int]:
    """Tell the other ranks how many tokens this one can use; return what each of them said."""
    import numpy as np

    return group.all_gather(np.array([taken], np.int32))[:, 0].tolist()


def check_order(decoder: Decoder) -> None:
    """Refuse a decoder that reads tokens in another order than that of the text."""
    from lockstep.reference.checkpoint.errors import InputError

    if not decoder.in_order:
        what = f"decoder {decoder.counts()['name']} does not keep the order of the text"
        raise InputError("--save-cache and --load-cache", what)


def check_source(path: str, options: Namespace) -> None:
    """Look at the header, and refuse another kind than the one that is asked for."""
    from lockstep.parity.prompt_cache.loading import opened
    from lockstep.reference.checkpoint.errors import InputError

    kind = opened(path).metadata["kind"]
    if options.cache not in (None, kind):
        raise InputError(path, f"is a cache that is {kind}, but --cache is {options.cache}")
    if any(one is not None for one in (options.cache_size, options.keep, options.recent)):
        raise InputError(path, "says its own; leave out --cache-size, --keep and --recent")


def check_read(max_tokens: int) -> None:
    """Refuse to save what nobody reads: a prompt is read for the token that comes after it."""
    from lockstep.reference.checkpoint.errors import InputError

    if not max_tokens:
        what = "--max-tokens 0 reads nothing; with 1 the file holds the prompt"
        raise InputError("--save-cache", what)


def check_target(path: str) -> None:
    """Refuse a file in a folder that is not there: an answer takes time."""
    from pathlib import Path

    from lockstep.reference.checkpoint.errors import InputError

    folder = Path(path).parent
    if not folder.is_dir():
        raise InputError(path, "cannot be written: its folder is not there")
    if Path(path).is_dir():
        raise InputError(path, "cannot be written: it is a folder")
