"""Bugs of the embeddings: of tokens, of positions, of a layer's own inputs."""

import torch
from torch.nn import functional as F

from tests.proof import traits
from tests.proof.port import Port
from tests.proof.registry import HALF, bug
from tests.proof.seams import wrap

TABLE, SCALE = "token embedding", "embedding scale"


@bug("embed-scale-missing", site=SCALE, when=traits.gemma)
def scale_missing(port: Port) -> None:
    port.embedding.embed_scale.fill_(1)


@bug("embed-scale-twice", site=SCALE, when=traits.gemma)
def scale_twice(port: Port) -> None:
    wrap(port.embedding, lambda embed, ids: embed(ids) * port.embedding.embed_scale)


@bug("embed-scale-not-rounded", site=SCALE, when=traits.root_is_rounded, dtypes=HALF)
def scale_not_rounded(port: Port) -> None:
    """Multiply in float32 by the exact root, then round once."""

    def scaled(embed, ids):
        rows = F.embedding(ids, port.embedding.weight).float()
        return (rows * port.config.hidden_size**0.5).to(port.embedding.weight.dtype)

    wrap(port.embedding, scaled)


@bug(
    "embed-table-transposed",
    site=TABLE,
    when=traits.loaded_as_stored,
)
def table_transposed(port: Port) -> None:
    """Read the table as if its dimensions were named the other way; the head reads it right."""
    weight = port.embedding.weight
    port.embedding.weight = torch.nn.Parameter(weight.reshape(*weight.shape[::-1]).T.contiguous())


@bug(
    "embedding-id-shifted",
    site=TABLE,
    when=traits.anywhere,
    variants={"one up": {"by": 1}, "one down": {"by": -1}},
)
def id_shifted(port: Port, by: int) -> None:
    rows = port.embedding.num_embeddings
    wrap(port.embedding, lambda embed, ids: embed((ids + by) % rows))


@bug(
    "learned-pos-offset",
    site="position embedding",
    when=traits.gpt2,
    variants={"two reserved rows": {"by": 2}, "from one": {"by": 1}},
)
def position_offset(port: Port, by: int) -> None:
    wrap(port.base.wpe, lambda embed, positions: embed(positions + by))


@bug("learned-pos-missing", site="position embedding", when=traits.gpt2)
def positions_missing(port: Port) -> None:
    """Go on from the words' rows alone, whatever was added to them."""
    rows = []
    port.base.wte.register_forward_hook(lambda module, given, out: rows.append(out))
    wrap(port.base.drop, lambda previous, x: previous(rows.pop()))


@bug("ple-token-scale-missing", site="own input, token", when=traits.own_inputs)
def own_token_scale_missing(port: Port) -> None:
    port.base.embed_tokens_per_layer.embed_scale.fill_(1)


@bug("ple-combine-scale-missing", site="own input, sum", when=traits.own_inputs)
def own_sum_scale_missing(port: Port) -> None:
    port.base.per_layer_input_scale = 1.0
