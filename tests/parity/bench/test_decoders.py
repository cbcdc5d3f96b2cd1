"""`lockstep bench --decoder`: what is timed, and what is refused."""

import json
from types import SimpleNamespace

import pytest

from lockstep.parity.bench.decoders import compared, parts_of
from lockstep.parity.bench.prompts import prompts_for, repeated
from lockstep.parity.generating.generation import tokenizer_of
from lockstep.reference.checkpoint.checkpoint import open_checkpoint
from tests.diffusion_by_loop import checkpoint
from tests.parity.conftest import DEMO
from tests.sampled import sampled

SHORT = ("--rounds", 2, "--max-tokens", 6, "--prompt-tokens", 8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wedlm")
    return checkpoint(folder, "8B", seed=1, sharp=2.5, mask_token_id=39)


@sampled(1)
@pytest.mark.parametrize("backend", ["cpu", "mlx", "reference"])
def test_windows_one_after_another(lockstep, model, backend):
    """By law: a window of one takes a pass more than there are tokens, of two tokens but one."""
    sweep = ("--decoder", "wedlm", "--windows", "1,3,8")
    said = lockstep("bench", model, *sweep, *SHORT, "--backends", backend, "--json", "-")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert (found["backend"], found["decoded"], found["rounds"]) == (backend, 6, 2)
    rows = found["decoders"]
    names = ["autoregressive", *(f"wedlm, window {size}" for size in (1, 3, 8))]
    assert [row["decoder"] for row in rows] == names * 2
    assert [row["prompt"] for row in rows] == ["repeated"] * 4 + ["random"] * 4
    for row in rows:
        rate = row["tokens_per_second"]
        assert 0 < rate["low"] <= rate["median"] <= rate["high"]
        assert (row["made"], row["prompt_tokens"], row["tokenize_s"]) == (6, 8, 0)
        parts = row["prefill_s"], row["steps_s"]
        assert all(part >= 0 for part in parts) and row["first_token_s"] >= max(parts)
    for row in (rows[0], rows[4]):
        assert (row["tokens_per_forward"], row["p_cache"], row["ratio"]) == (1, 1, 1)
    for row in (rows[1], rows[5]):
        assert row["tokens_per_forward"] == 6 / 7 and row["p_cache"] == 6 / 13
    assert rows[2]["counts"]["window"] == 3


def test_the_table(lockstep):
    said = lockstep("bench", DEMO, "--decoder", "wedlm", "--mask-id", 0, "--rounds", 1,
                    "--max-tokens", 4, "--window", 4)  # fmt: skip
    lines = said.out.splitlines()
    assert said.code == 0 and [line.split(",")[0] for line in lines[1:6:2]] == [
        "low", "medium", "high"
    ]  # fmt: skip
    assert "4 tokens decoded greedily on cpu, float32, 1 round in" in lines[-1]
    assert all("x " in line and " ms" in line for line in lines[1:7])


def test_other_decoders_too(lockstep):
    said = lockstep("bench", DEMO, "--decoder", "speculative", "--draft", "lookup", "--rounds", 1,
                    "--max-tokens", 8, "--json", "-")  # fmt: skip
    rows = json.loads(said.out)["decoders"]
    assert {row["decoder"] for row in rows} == {"autoregressive", "speculative"}
    drafted = [row for row in rows if row["decoder"] == "speculative"]
    assert all(row["tokens_per_forward"] >= 1 and row["p_cache"] is None for row in drafted)
    for row in drafted:
        counts = row["counts"]
        share = counts["accepted"] / counts["drafted"] if counts["drafted"] else None
        assert row["acceptance"] == share
    assert all(row["acceptance"] is None for row in rows if row not in drafted)


def test_what_is_accepted_by_kind_of_prompt(lockstep):
    """By law: a model that is its own draft is believed, on every kind of prompt; in the table too.

    Of 9 tokens the first is plain, and each of two rounds of three adds one.
    """
    said = lockstep("bench", DEMO, "--decoder", "speculative", "--draft", DEMO, "--rounds", 1,
                    "--max-tokens", 9, "--draft-tokens", 3)  # fmt: skip
    lines = said.out.splitlines()
    assert said.code == 0 and "accepted" in lines[0]
    for plain, drafted in ((1, 2), (3, 4), (5, 6)):
        cells = [line.split("x  ")[1].split()[:3] for line in (lines[plain], lines[drafted])]
        assert cells == [["1.00", "1.00", "-"], ["3.00", "-", "1.00"]]


@pytest.mark.parametrize(
    ("core", "arguments"),
    [
        ("--windows: goes with --decoder", ("--windows", "4")),
        ("--window: goes with --decoder", ("--window", "4")),
        ("--windows: goes with --decoder wedlm", ("--windows", "4", "--decoder", "autoregressive")),
        ("--windows: and --window say the same",
         ("--decoder", "wedlm", "--windows", "4", "--window", "4")),
        ("window=0, but should be from 1", ("--decoder", "wedlm", "--windows", "4,0")),
        ("--max-tokens: 1, but the first token is not timed",
         ("--decoder", "wedlm", "--max-tokens", "1")),
        ("--against: goes without --decoder", ("--decoder", "wedlm", "--against", "mlx-lm")),
        ("mlx-lm is no backend, and --decoder needs one",
         ("--decoder", "wedlm", "--backends", "mlx-lm")),
        ("and 60 steps, but the model's context is 64",
         ("--decoder", "wedlm", "--max-tokens", "60", "--prompt-tokens", "8")),
    ],
)  # fmt: skip
def test_what_is_refused(refuses, model, core, arguments):
    refuses(core, "bench", model, *arguments)


def test_the_kinds_of_prompt():
    """By hand: without a tokenizer four ids over and over, or all drawn."""
    both = prompts_for(None, 50, 10)
    assert [one.kind for one in both] == ["repeated", "random"]
    drawn = both[1].tokens(None)
    assert both[0].tokens(None) == (drawn[:4] * 3)[:10] and max(drawn) < 50
    assert prompts_for(None, 50, 10) == both
    assert repeated([1, 2, 3]) == (1, 2, 3)
    tokenizer = tokenizer_of(open_checkpoint(DEMO))
    texts = prompts_for(tokenizer, 704, 10)
    assert [one.kind for one in texts] == ["low", "medium", "high"]
    turn = tokenizer.encode_chat([{"role": "user", "content": texts[0].text}])
    assert texts[0].tokens(tokenizer) == turn
    plain = SimpleNamespace(parts=(None, SimpleNamespace(templates={})), encode=list)
    assert texts[0].tokens(plain) == list(texts[0].text or "")


def test_parts_and_ratios_by_hand():
    timings = {"tokenize_s": 1.0, "prefill_s": 2.0, "first_token_s": 3.5, "total_s": 9.0}
    assert parts_of(timings) == {
        "tokenize_s": 1.0, "prefill_s": 2.0, "steps_s": 0.5, "first_token_s": 3.5
    }  # fmt: skip
    rows = [{"tokens_per_second": {"median": rate}} for rate in (4.0, 6.0)]
    assert [row["ratio"] for row in compared(rows)] == [1.0, 1.5]
