"""What goes wrong with the cache: while the prompt is read, and in the steps after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.found_again import (
    VARIANTS_OF_ROUNDING,
    after_a_turn,
    axes_mixed,
    before_the_turn,
    exchanged,
    exchanged_in_steps,
    in_the_basis_of_storage,
    of_other_layer,
    of_so_many_heads,
    rounded_in_the_cache,
    turned_again,
    turned_by_the_step,
)
from lockstep.parity.faults.mask import seeing
from lockstep.parity.faults.misplaced import SLOTS, misplaced_keys, misplaced_values
from lockstep.parity.faults.passes import repositioned
from lockstep.parity.faults.pooled import of_all_layers, of_other_layer_always
from lockstep.parity.faults.rings import (
    AS_THEY_LIE,
    FIRST_KEPT,
    before_it_is_full,
    of_the_length,
    overwritten,
    read_to_the_end,
    trimmed_by_buffer,
)
from lockstep.parity.faults.rope import QUERIES
from lockstep.parity.faults.rounded_caches import IN_8_BITS
from lockstep.parity.faults.slots import (
    EMPTY,
    STEP,
    Asked,
    in_chunks,
    of_same_prompt,
    own,
    remembering,
    seen_by,
    shortened,
    wrapped,
)
from lockstep.parity.graph import Call, Graph

OTHER_LAYERS = {"the first layer": lambda layer: 0, "the layer before": lambda layer: layer - 1}


def retained(fewer: int) -> Any:
    """Count positions by what is left in the cache of the narrowest window, from there on."""

    def rewritten(call: Call, graph: Graph) -> Call | None:
        windows = [one.options["window"] for one in graph.calls if one.op == "causal_mask"]
        widths = [window for window in windows if window is not None]
        if not widths:
            return None
        kept = max(min(widths) - fewer, 0)
        return repositioned(lambda at, begins, length: np.minimum(at, kept))(call, graph)

    return rewritten


def between(asked: Asked, tokens: Sequence[int]) -> list[int]:
    """Return those of some tokens that are within the window, and the step's own."""
    return [one for one in tokens if asked.oldest <= one < asked.begins] + own(asked)


def in_one_slot(*, empty: bool) -> Callable[[Asked], list[int]]:
    """Find the prompt's last token where all of it was put, and nothing in its other slots."""

    def held(asked: Asked) -> list[int]:
        later = list(range(asked.prompt, asked.token + 1))
        return [asked.prompt - 1, *later, *[EMPTY] * ((asked.prompt - 1) * empty)]

    return held


FAULTS = (
    Fault(
        id="kv-cursor-not-advanced",
        wrong="tokens' keys and values are written into one slot, or a slot too early or too late",
        right="token p goes into slot p, behind those before it",
        symptom="each token knows itself alone; or the text ignores the prompt, or what came since",
        where="self_attn.o_proj from the second token on, or from step 1 or 2 on",
        fix="advance the write position by the tokens written, once a step for all layers",
        variants={
            "": seeing(window=1),
            "the prompt in one slot, the rest of its slots empty": remembering(
                in_one_slot(empty=True)
            ),
            "the prompt in one slot, later tokens behind it": remembering(in_one_slot(empty=False)),
            "later tokens in one slot": remembering(
                lambda asked: between(asked, range(asked.prompt))
            ),
            "later tokens in the prompt's last slot": remembering(
                lambda asked: between(asked, range(asked.prompt - 1))
            ),
            "one slot too early": remembering(
                lambda asked: [one for one in seen_by(asked) if one != asked.prompt - 1]
            ),
            "one slot too early, and read to an empty one": remembering(
                lambda asked: [*(one for one in seen_by(asked) if one != asked.prompt - 1), EMPTY]
            ),
            "one slot too late, the slot between being empty": remembering(
                lambda asked: [*seen_by(asked), EMPTY]
            ),
            "one slot too late, and read to where it should be": remembering(
                lambda asked: [*(one for one in seen_by(asked) if one < asked.begins), EMPTY]
            ),
            "read from the second slot on": remembering(
                lambda asked: [one for one in seen_by(asked) if one > 0]
            ),
        },
    ),
    Fault(
        id="kv-one-part-misplaced",
        wrong="keys alone, or values alone, are put into other slots, or into none",
        right="slot p holds the key and the value of token p",
        symptom="the first token is right, then text that falls apart",
        where="self_attn.o_proj from step 1 or 2 on",
        fix="write and keep both by the same index, and assign both to the cache",
        acausal=True,
        variants={
            f"{part} {name}": misplaced(slots)
            for part, misplaced in (("keys", misplaced_keys), ("values", misplaced_values))
            for name, slots in SLOTS.items()
        },
    ),
    Fault(
        id="kv-offset-aliased",
        wrong="queries, or keys too, turn by p + n, n being the tokens that are fed with them",
        right="queries and keys turn by p",
        symptom="quality falls with the length of the prompt; or each step seems one token late",
        where="self_attn.q_rope",
        fix="take the offset of the cache before keys are put into it, and by value",
        evidence=("Blaizzy/mlx-vlm#966",),
        acausal=True,
        variants={
            "": repositioned(lambda at, begins, length: at + length, QUERIES, everywhere=True),
            "in steps alone": repositioned(lambda at, begins, length: at + length, QUERIES),
            "in steps alone, keys too": repositioned(lambda at, begins, length: at + length),
        },
    ),
    Fault(
        id="kv-never-stored",
        wrong="a step's queries see the keys of their own step alone",
        right="a step's queries see all keys before them, and their own",
        symptom="the first token is right, then text that has nothing to do with the prompt",
        where="self_attn.o_proj from step 1 on",
        fix="assign the keys and values that were put together to the cache",
        evidence=("huggingface/candle#1120",),
        variants={
            "": remembering(own),
            "in chunks of several tokens": remembering(in_chunks(own)),
        },
    ),
    Fault(
        id="kv-read-before-write",
        wrong="a step's queries see the keys of earlier steps, and not their own",
        right="a step's queries see all keys before them, and their own",
        symptom="the first token is right, then text that is one token behind",
        where="self_attn.o_proj from step 1 on",
        fix="put keys and values into the cache before they are read, and count them",
        variants={
            "": remembering(lambda asked: [one for one in seen_by(asked) if one < asked.begins])
        },
    ),
    Fault(
        id="kv-head-count-in-cache",
        wrong="the cache has a head for each query head, and is filled with the key heads alone",
        right="the cache has num_key_value_heads; query head h reads key head h // (H / G)",
        symptom="the first token is right, then garbage from models with fewer key heads",
        where="self_attn.o_proj from step 1 on",
        fix="allocate the cache with num_key_value_heads, and repeat heads when it is read",
        variants={"query heads read their own number, and zeros beyond": of_so_many_heads()},
    ),
    Fault(
        id="kv-axes-mixed",
        wrong="keys and values are written as (B, S, G, D), and read as (B, G, S, D)",
        right="they are written in the layout that they are read in",
        symptom="the first token is right, then garbage",
        where="self_attn.o_proj from step 1 on",
        fix="move the axis of heads before that of tokens, then write; a reshape moves nothing",
        variants={"": axes_mixed()},
    ),
    Fault(
        id="kv-not-reset-between-prompts",
        wrong="a prompt's tokens see what an earlier text left in the cache",
        right="a new text begins with an empty cache",
        symptom="the first prompt is right, each later one knows those before it",
        where="self_attn.o_proj",
        fix="make a new cache for each text, or set its length to 0",
        evidence=("huggingface/candle@66be13b51",),
        acausal=True,
        variants={"the same prompt before": of_same_prompt},
    ),
    Fault(
        id="kv-ring-size-off-by-one",
        wrong="the ring of a sliding layer holds W - 1 or W + 1 keys, or not the last W",
        right="a step sees the last W keys, its own among them",
        symptom="hardly any, and only beyond W tokens",
        where="self_attn.o_proj of sliding layers from a step on",
        fix="hold W keys, write token p to slot p mod W, and keep nothing else",
        evidence=(
            "ml-explore/mlx-examples#1093",
            "ml-explore/mlx-swift-lm#39",
        ),
        variants={
            "one key less": remembering(lambda asked: seen_by(shortened(asked, 1))),
            "one key more": remembering(lambda asked: seen_by(shortened(asked, -1))),
            **FIRST_KEPT,
            "full, it is written at its end again and again": remembering(
                wrapped(
                    lambda prompt, window: range(max(prompt - window, 0), prompt),
                    lambda token, prompt, window: window - 1,
                )
            ),
        },
    ),
    Fault(
        id="kv-ring-sliced-as-flat",
        wrong="slot i of a ring is taken for token i, though a long prompt lies otherwise in it",
        right="the slots of a ring are those of the last W tokens, in the order of writing",
        symptom="fine with short prompts; after one longer than W, tokens are missing",
        where="self_attn.o_proj of sliding layers from step 1 on",
        fix="put prompt token p into slot p mod W, or go on writing at the oldest slot",
        evidence=("Blaizzy/mlx-vlm#1748",),
        variants={
            "the prompt's last W in order, later tokens by p mod W": remembering(
                wrapped(
                    lambda prompt, window: range(max(prompt - window, 0), prompt),
                    lambda token, prompt, window: token % window,
                )
            ),
            "the prompt by p mod W, later tokens from slot 0 on": remembering(
                wrapped(
                    lambda prompt, window: sorted(
                        range(max(prompt - window, 0), prompt), key=lambda p: p % window
                    ),
                    lambda token, prompt, window: (token - prompt) % window,
                )
            ),
            "a chunk takes the slots as they lie for the last tokens": AS_THEY_LIE,
            "the prompt's first W are kept": remembering(
                wrapped(
                    lambda prompt, window: range(min(prompt, window)),
                    lambda token, prompt, window: token % window,
                )
            ),
        },
    ),
    Fault(
        id="kv-ring-overwritten",
        wrong="all tokens of a chunk are put into a ring of W slots, then each looks for its keys",
        right="each token of a chunk sees the W - 1 before it",
        symptom="long prompts that are read in parts lose what stands at the beginning of a part",
        where="self_attn.o_proj of sliding layers from the second chunk on",
        fix="attend to what the ring held and the chunk together, and write the chunk afterwards",
        variants={"": remembering(overwritten)},
    ),
    Fault(
        id="kv-chunk-cache-trims-buffer",
        wrong="the length of the buffer is taken for the number of tokens in it",
        right="offset says how many slots are filled; what lies behind is not there",
        symptom="the text forgets, or thins out, depending on a length that nobody chose",
        where="self_attn.o_proj from step 1 on",
        fix="trim and slice the cache by its offset, not by its buffer's length",
        evidence=(
            "ml-explore/mlx-lm#1673",
            "ml-explore/mlx-lm#108",
        ),
        variants={
            f"trimmed by it, a buffer of {STEP} slots": remembering(trimmed_by_buffer),
            f"read to its end, a buffer of {STEP} slots": remembering(read_to_the_end),
            "read to its end, a buffer of the text's length": of_the_length,
            "a ring read to its end before it is full": remembering(before_it_is_full),
        },
    ),
    Fault(
        id="kv-position-from-retained-count",
        wrong="position = number of keys that the cache still holds",
        right="position = number of tokens seen",
        symptom="positions stand still once the window is full",
        where="self_attn.q_rope from a step on",
        fix="count the tokens seen apart from the slots filled",
        evidence=(
            "rajveer43/VeloxQuant-MLX#389",
            "rajveer43/VeloxQuant-MLX#139",
        ),
        variants={
            "as many as the window": retained(0),
            "one less than the window": retained(1),
        },
    ),
    Fault(
        id="rope-on-cached-keys-again",
        wrong="keys in the cache are turned when they are put in, and again when they are read",
        right="each key is turned once, to its own position",
        symptom="the first token is right, then text that falls apart",
        where="self_attn.o_proj from step 1 on",
        fix="turn new keys alone, before they join the cache",
        variants={
            "once more": after_a_turn,
            "in every step anew": turned_again,
            "by the step's own position": turned_by_the_step(kept=False),
            "by the step's own position, and kept so": turned_by_the_step(kept=True),
        },
    ),
    Fault(
        id="kv-cached-before-rope",
        wrong="keys join the cache as they are before their turn",
        right="keys are turned to their positions, then put into the cache",
        symptom="the first token is right, then text without an order",
        where="self_attn.o_proj from step 1 on",
        fix="apply the rope before the cache is updated",
        variants={"": before_the_turn},
    ),
    Fault(
        id="kv-of-other-layer",
        wrong="keys and values are read from the cache of another layer, in steps or always",
        right="layer i reads what layer i wrote",
        symptom="the first token is right, then garbage; or all is",
        where="self_attn.o_proj of other layers than the first, from step 1 on, or always",
        fix="index the cache by layer; where layers share, by the layer that owns the keys",
        variants={
            f"{name}{part}": of_other_layer(which, keys=keys, values=values)
            for name, which in OTHER_LAYERS.items()
            for part, keys, values in (
                ("", True, True),
                (", keys alone", True, False),
                (", values alone", False, True),
            )
        }
        | {
            f"{name}, in the prompt too": of_other_layer_always(which)
            for name, which in OTHER_LAYERS.items()
        },
    ),
    Fault(
        id="kv-one-for-all-layers",
        wrong="all layers put their keys and values into one cache, and read all of it",
        right="each layer has a cache of its own",
        symptom="garbage, though the first layer is right",
        where="self_attn.o_proj of the second layer",
        fix="make a cache for each layer: [Cache()] * n is n times the same one",
        acausal=True,
        variants={
            "": of_all_layers(),
            "seen by their positions": of_all_layers(by_position=True),
            "positions counted on": of_all_layers(counted_on=True),
        },
    ),
    Fault(
        id="kv-exchanged",
        wrong="steps read values where they should read keys, and keys where values",
        right="keys are read as keys, values as values",
        symptom="the first token is right, then garbage",
        where="self_attn.o_proj from step 1 on",
        fix="take both from the cache in the order in which they were put in",
        variants={
            "": exchanged(),
            "values for both": exchanged(values=False),
            "a step's own too": exchanged_in_steps(),
        },
    ),
    Fault(
        id="kv-quant-basis-mismatch",
        wrong="the cache is read in the basis that it is stored in, H k / sqrt(D)",
        right="what is stored rotated is rotated back when it is read",
        symptom="the first token is right, then garbage",
        where="self_attn.o_proj from step 1 on",
        fix="encode and decode with the same rotation, keys and values alike",
        evidence=("Blaizzy/mlx-vlm#973",),
        variants={
            "keys and values": in_the_basis_of_storage("keys", "values"),
            "keys": in_the_basis_of_storage("keys"),
            "values": in_the_basis_of_storage("values"),
        },
    ),
    Fault(
        id="kv-int8-noise",
        wrong="keys and values in the cache are rounded to fewer bits",
        right="the cache keeps what was computed",
        symptom="text drifts, the more the longer it is",
        where="self_attn.o_proj from step 1 on",
        fix="keep the cache in the dtype of the model, or know that it is quantised",
        coarse=True,
        variants={name: rounded_in_the_cache(kind) for name, kind in VARIANTS_OF_ROUNDING.items()}
        | IN_8_BITS,
    ),
)
