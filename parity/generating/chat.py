"""A chat with a model: turns, and a cache that goes on from one to the next."""

import time
from collections.abc import Callable
from typing import Any

from lockstep.parity.generating.generation import Generation
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import context_length, steady_length
from lockstep.reference.scheduling.feeding import still_good


class Chat:
    """The messages so far, and what the cache holds of the last text.

    The template writes the whole chat anew for each answer, and may change earlier turns: many
    leave out what a model thought. Of that text only what the cache does not hold is read.
    """

    def __init__(
        self, generation: Generation, tokenizer: Any, *, system: str | None, variables: dict
    ):
        self.generation, self.tokenizer, self.variables = generation, tokenizer, variables
        self.messages: list[dict[str, str]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.cache: Any = None
        self.held: list[int] = []  # the tokens in the cache

    def answer(
        self,
        text: str,
        max_tokens: int,
        say: Callable[[str], None],
        *,
        stopped: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """Answer a user's message, as `Generation.run` does; "cached_tokens" were not read again.

        Raises: InputError if the template refuses the messages, or they do not fit the context. The
        message is not there then.
        """
        begin = time.perf_counter()
        messages = [*self.messages, {"role": "user", "content": text}]
        tokens = self.tokenizer.encode_chat(messages, **self.variables)
        self.check(tokens)
        taken = time.perf_counter() - begin
        try:
            self.cut_back(tokens)
            cached = len(self.held)
            document = self.generation.run(
                tokens, max_tokens, say, tokenize_s=taken, cache=self.cache, stopped=stopped
            )
            self.keep(tokens, document)
        except BaseException:  # nobody knows how far the cache has gone
            self.forget()
            raise
        content = self.content(document)
        self.messages = [*messages, {"role": "assistant", "content": content}]
        return document | {"cached_tokens": cached}

    def check(self, tokens: list[int]) -> None:
        model = self.generation.model
        context = context_length(model.config)
        if len(tokens) > context:
            what = f"the chat has {len(tokens)} tokens, but the model's context is {context}"
            raise InputError(model.checkpoint.path, what)

    def cut_back(self, tokens: list[int]) -> None:
        """Let the cache hold what the text begins with, but not all of it: the last token is read.

        A cache that cannot be cut back that far, as one of sliding windows, begins anew; so does
        one whose keys are those of a text that must not be read in parts.
        """
        keep = still_good(self.held, tokens, steady_length(self.generation.model.config))
        if self.cache is not None and keep:
            try:
                self.cache.trim(len(self.held) - keep)
                self.held = tokens[:keep]
                return
            except InputError:
                pass
        self.held = []
        self.cache = self.generation.made_cache(context_length(self.generation.model.config))

    def keep(self, tokens: list[int], document: dict[str, Any]) -> None:
        """Note what the cache holds. What may be half read, or in another order, is forgotten."""
        whole = [*tokens, *document["tokens"]]
        # A step that was stopped is taken back by its places alone. Slots that are used again have
        # moved by then, in some layers.
        torn = document["ended_by"] == "interrupted" and self.cache.positions.rings
        if torn or not self.generation.decoder.in_order or not document["tokens"]:
            self.forget()
            return
        length = min(self.cache.positions.length, len(whole) - 1)
        self.cache.trim(self.cache.positions.length - length)
        self.held = whole[:length]

    def forget(self) -> None:
        """Let the next turn begin with an empty cache."""
        self.cache, self.held = None, []

    def content(self, document: dict[str, Any]) -> str:
        """Return the answer as the template is to see it again: with the marks of thinking."""
        made = document["tokens"]
        if document["ended_by"] == "stop string":
            return self.cut(made, len(document["text"]))
        ended = document["ended_by"] == "stop id"
        return self.tokenizer.decode(made[:-1] if ended else made, special=True)

    def cut(self, made: list[int], length: int) -> str:
        """Return the first `length` characters that were shown, and the marks among them.

        The token that goes beyond them is no mark: those are not shown.
        """
        stream, shown, count = self.tokenizer.stream(), 0, 0
        while shown <= length and count < len(made):
            shown += len(stream.push(made[count]))
            count += 1
        plain, marked = (self.tokenizer.decode(made[:count], special=one) for one in (False, True))
        return marked[: len(marked) - (len(plain) - length)]
