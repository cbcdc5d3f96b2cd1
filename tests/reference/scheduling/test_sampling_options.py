"""What a sampler may be told, by the table of docs/decoding.md."""

import pytest

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.sampling_options import SamplingOptions

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-1, -1e-9, 1e-7, 100.1, NAN, INF]),
        ("top_k", [-1]),
        ("top_p", [0, -0.1, 1.0000001, NAN, INF]),
        ("min_p", [-0.1, 1.1, NAN, INF]),
        ("typical_p", [0, -0.1, 1.1, NAN, INF]),
        ("repetition_penalty", [0, -1, 100.1, NAN, INF]),
        ("frequency_penalty", [-100.1, 100.1, NAN, INF, -INF]),
        ("presence_penalty", [-100.1, 100.1, NAN, INF, -INF]),
        ("penalty_window", [0, -1]),
        (
            "logit_bias",
            [
                ((0, INF),),
                ((0, NAN),),
                ((-1, 1.0),),
                ((2, 1.0), (2, 1.0)),
                ((0, 1.1e9),),
                ((0, -1.1e9),),
                ((0, 1e308),),
            ],
        ),
    ],
)
def test_what_is_out_of_range_is_named(name, values):
    for value in values:
        with pytest.raises(InputError, match=f"{name}=.*but should be"):
            SamplingOptions(**{name: value})


@pytest.mark.parametrize(
    "chosen",
    [{"temperature": 0}, {"temperature": 1e-6}, {"temperature": 100}, {"top_k": 10**9},
     {"top_p": 1}, {"top_p": 1e-300}, {"min_p": 0}, {"min_p": 1}, {"typical_p": 1e-300},
     {"repetition_penalty": 1e-9}, {"repetition_penalty": 100}, {"presence_penalty": -100},
     {"frequency_penalty": 100}, {"penalty_window": 1},
     {"logit_bias": ((0, -INF), (1, -3.0), (2, 1e9), (3, -1e9))}],
)  # fmt: skip
def test_the_ends_of_the_ranges_are_in_them(chosen):
    SamplingOptions(**chosen)


def test_a_share_of_0_is_for_those_engines_that_take_it():
    for engine in ("llama.cpp", "transformers", "mlx-lm", "ember"):
        SamplingOptions(top_p=0, semantics=engine)
    SamplingOptions(typical_p=0, semantics="llama.cpp")
    with pytest.raises(InputError, match="typical_p=0, but should be above 0"):
        SamplingOptions(typical_p=0, semantics="transformers")


def test_when_the_largest_logit_wins_as_it_is():
    assert SamplingOptions(top_k=3, top_p=0.1).is_argmax
    for chosen in (
        {"temperature": 1},
        {"repetition_penalty": 1.1},
        {"logit_bias": ((0, 1.0),)},
        {"semantics": "llama.cpp"},
    ):
        assert not SamplingOptions(**chosen).is_argmax
