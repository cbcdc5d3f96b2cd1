from lockstep.reference.shapes import Inputs


def column_block(x: Inputs, *, block: int, blocks: int) -> Inputs:
    """Take one of several equal blocks of columns: (B, L, blocks*N) -> (B, L, N).

        out = x[..., block*N : (block+1)*N]

    GPT-2 projects to queries, keys and values in one matrix; blocks 0, 1 and 2 are the three.
    Gemma 4's small builds look up the inputs of all layers at once; each layer takes its block.
    Rounding: none.
    Edges: no tokens give (B, 0, N).
    Varies by model: GPT-NeoX and others interleave the three head by head instead.
    Raises: ValueError if the width is no multiple of `blocks`, or there is no such block.
    Source: Radford et al. 2019, the released code of GPT-2, `split_states`.
    """
    if not 0 <= block < blocks or x.shape[-1] % blocks:
        raise ValueError(f"column_block: block {block} of {blocks} from width {x.shape[-1]}")
    width = x.shape[-1] // blocks
    return x[..., block * width : (block + 1) * width]
