"""What a softmax in half precision makes of a query that sees nothing. By witness: torch."""

import numpy as np
import pytest
import torch

from lockstep.parity.noise.exact import exact
from lockstep.reference import ops
from lockstep.reference.precision import dtype_named
from tests.parity.faults.hand_made import call, graph_of, variant, wrong

KEYS = 6
SEEN = np.triu(np.ones((KEYS, KEYS), bool), k=1)[None, None]  # the last query sees nothing


def by_torch(scores: np.ndarray, dtype: str, half: str) -> np.ndarray:
    """Mask by the lowest number of a dtype, as transformers does, and take the rest in `half`."""
    wide = getattr(torch, dtype)
    lowest = torch.finfo(wide).min
    masked = torch.tensor(scores).to(wide).masked_fill(~torch.tensor(SEEN), lowest)
    narrow = masked.to(getattr(torch, half))
    shares = (narrow - narrow.amax(-1, keepdim=True)).exp()
    return (shares / shares.sum(-1, keepdim=True)).double().numpy()


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_row_without_keys_is_no_number_where_half_precision_has_no_lowest(dtype, half):
    held = dtype_named(dtype)
    scores = np.random.default_rng(3).standard_normal((1, 2, KEYS, KEYS))
    scores = scores.astype(held).astype(np.float64)
    graph = graph_of(call(0, "softmax", scores, SEEN, masked_row="uniform", layer=0))
    found = wrong(
        graph, variant("softmax-low-precision", f"in {half}"), ops=exact(ops, held)
    )  # fmt: skip
    expected = by_torch(scores, dtype, half)
    assert np.isnan(expected[..., -1, :]).any() == (dtype != "float16" and half != dtype)
    np.testing.assert_array_equal(found[..., :-1, :], expected[..., :-1, :])
    np.testing.assert_allclose(found[..., -1, :], expected[..., -1, :], rtol=2**-7)
