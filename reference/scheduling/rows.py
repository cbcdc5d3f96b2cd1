"""The rows of a model that goes on with many texts: how prompts are read, and tokens fed."""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.feeding import check_prompt, fed, last_logits
from lockstep.reference.scheduling.host import Host
from lockstep.reference.scheduling.in_flight import Prompt
from lockstep.reference.stores.slots import Slots

TOGETHER = 256  # tokens of prompts that are read in one pass, with their padding
Begun = tuple[int, Any] | InputError


class ModelRows:
    """Texts side by side. `zeros` makes the package's arrays; `chunk` is as in `generate`."""

    def __init__(
        self,
        model: Any,
        slots: int,
        chunk: int | None,
        *,
        zeros: Callable[..., Any],
        host: Host,
    ):
        self.model, self.chunk, self.host = model, chunk, host
        self.rows: Any = Slots(slots, zeros)  # a cache, to the model

    def read(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, Begun]]:
        """Read prompts, those of about one length in one pass; yield each with its place.

        A prompt that is refused comes first, and is not there for the others.
        """
        good = []
        for place, prompt in enumerate(prompts):
            error = refusal(self.model, prompt.tokens, 0)
            if error is None:
                good.append(place)
            else:
                yield place, error
        for group in groups([len(prompts[place].tokens) for place in good], self.chunk):
            places = [good[number] for number in group]
            begun = self.read_group([prompts[place] for place in places])
            yield from zip(places, begun, strict=True)

    def read_group(self, prompts: Sequence[Prompt]) -> list[Begun]:
        """Read prompts in one pass; a single one in chunks."""
        model, cache = self.model, self.model.make_cache()
        lengths = [len(prompt.tokens) for prompt in prompts]
        if len(prompts) == 1:
            new = fed(model, list(prompts[0].tokens), cache, self.chunk, None, self.host)
            logits = last_logits(model, new, cache, None)
        else:
            padded = [padded_to(max(lengths), one.tokens) for one in prompts]
            logits = model.forward(padded, cache=cache, lengths=lengths, last_only=True)[:, 0]
        tokens = self.host.choices(model, logits, [prompt.choose for prompt in prompts])
        return [
            token if isinstance(token, InputError) else (token, Row(cache, row, lengths[row]))
            for row, token in enumerate(tokens)
        ]

    def join(self, cache: "Row") -> None:
        self.rows.join(self.model.ops, cache)

    def refused(self, row: int, token: int) -> InputError | None:
        return refusal(self.model, [token], self.rows.lengths[row])

    def step(self, tokens: list[int], prompts: list[Prompt]) -> Sequence[int | InputError]:
        logits = self.model.forward([[token] for token in tokens], cache=self.rows)[:, 0]
        return self.host.choices(self.model, logits, [prompt.choose for prompt in prompts])

    def leave(self, row: int) -> None:
        self.rows.leave(row)


class Row:
    """A text of a padded batch, as if it had a cache of its own."""

    def __init__(self, cache: Any, row: int, length: int):
        self.cache, self.row = cache, row
        self.positions = SimpleNamespace(length=length)

    def state(self) -> list[tuple[list[Any], list[Any]]]:
        """Return what each layer holds of its keys and its values, (1, G, length, D)."""
        return [(self.cut(keys), self.cut(values)) for keys, values in self.cache.state()]

    def cut(self, arrays: Sequence[Any]) -> list[Any]:
        row, length = self.row, self.positions.length
        return [array[row : row + 1, :, :length] for array in arrays]


def padded_to(length: int, tokens: Sequence[int]) -> list[int]:
    """Repeat the last token. Any other's keys might be NaN, which spoils sums though hidden."""
    return [*tokens, *[tokens[-1]] * (length - len(tokens))]


def refusal(model: Any, tokens: Sequence[int], start: int) -> InputError | None:
    """Say why tokens cannot be fed behind `start` others of one text, as the model would."""
    held: Any = SimpleNamespace(next=lambda rows: np.full(rows, start))
    try:
        check_prompt(model, tokens)
        model.rules.batch([tokens], lengths=None, positions=None, held=held, last_only=True)
    except InputError as error:
        return error
    return None


def groups(lengths: Sequence[int], chunk: int | None) -> list[list[int]]:
    """Say which prompts are read in one pass, by their places, the short ones first.

    They are of one power of two in length, so the padding is never as much as what is read, and
    have `TOGETHER` tokens with it: beyond, a pass costs by the token, and its memory too. One that
    is longer than a chunk is alone.
    """
    found: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        last, length = found[-1] if found else [], lengths[place]
        fits = (len(last) + 1) * length <= TOGETHER and (chunk is None or length <= chunk)
        if last and fits and lengths[last[0]].bit_length() == length.bit_length():
            last.append(place)
        else:
            found.append([place])
    return found
