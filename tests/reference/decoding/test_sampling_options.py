"""What a sampler may be told, by the table of docs/decoding.md."""

import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.sampling_options import SamplingOptions

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-1, -1e-9, 1e-7, 100.1, NAN, INF]),
        ("top_k", [-1]),
        ("top_p", [0, -0.1, 1.0000001, NAN, INF]),
        ("min_p", [-0.1, 1.1, NAN, INF]),
    ],
)
def test_what_is_out_of_range_is_named(name, values):
    for value in values:
        with pytest.raises(InputError, match=f"{name}=.*but should be"):
            SamplingOptions(**{name: value})


@pytest.mark.parametrize(
    "chosen",
    [{"temperature": 0}, {"temperature": 1e-6}, {"temperature": 100}, {"top_k": 10**9},
     {"top_p": 1}, {"top_p": 1e-300}, {"min_p": 0}, {"min_p": 1}],
)  # fmt: skip
def test_the_ends_of_the_ranges_are_in_them(chosen):
    SamplingOptions(**chosen)
