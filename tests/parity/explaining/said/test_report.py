"""A diagnosis as a person reads it. By hand."""

from lockstep.parity.explaining.said.diagnosis import Diagnosis, Named, Unexplained
from lockstep.parity.explaining.said.report import report


def unknown(count: int) -> str:
    """Return the report on so many wrong taps without a name."""
    wrong = [Unexplained(f"model.layers.{at}", 0.5, 1e-7, "") for at in range(count)]
    return report(Diagnosis(dump="port", model="model", unexplained=wrong))


def test_of_many_taps_without_a_name_the_first_are_listed():
    text = unknown(15)
    assert "15 wrong taps unexplained" in text
    assert "model.layers.11  " in text and "model.layers.12" not in text
    assert text.endswith("\nand 3 more, which --json lists")


def test_of_few_all_are_listed():
    assert "1 wrong tap unexplained" in unknown(1)
    text = unknown(12)
    assert "model.layers.11  " in text and "more" not in text


def test_a_fix_is_one_line_and_a_long_list_of_layers_is_said_in_ranges():
    layers, fix = [*range(28), 40], "word " * 30
    taps = [f"model.layers.{at}.mlp" for at in reversed(layers)]
    bug = Named("a-bug", None, taps, layers, 0.99, 0.5, 0.0, 1e-7, None, [], fix.strip())
    lines = report(Diagnosis(dump="port", model="model", faults=[bug])).splitlines()
    assert lines[4] == f"  1. a-bug (layers 0-27, 40): {fix.strip()}"
    assert "seen at     model.layers.*.mlp (29)" in lines


def test_a_bug_of_steps_alone_is_not_said_to_be_the_prompt_s():
    def seen_at(*taps):
        bug = Named("a-bug", None, [*taps], [], 0.99, 0.5, 0.0, 1e-7, None, [], "")
        lines = report(Diagnosis(dump="port", model="model", faults=[bug])).splitlines()
        return next(line.split(maxsplit=2)[2] for line in lines if line.startswith("seen at"))

    assert seen_at("step.1/logits", "step.2/logits") == "step.*/logits (2)"
    assert seen_at("logits", "step.1/logits", "step.2/logits") == "logits (3)"
    stem = "model.layers.{}.self_attn.o_proj"
    same = [f"step.2/{stem.format(layer)}" for layer in (0, 1)]
    assert seen_at(*same) == f"step.2/{stem.format('*')} (2)"
    assert seen_at(same[0]) == same[0]


def test_the_first_piece_that_holds_more_than_was_dumped_says_what():
    inner = [
        f"model.layers.1.{name}" for name in ("q_rope", "k_rope", "scores", "probs", "context")
    ]
    wrong = [Unexplained("a", 0.5, 1e-7, ""), Unexplained("b", 0.5, 1e-7, "", inside=inner)]
    last = report(Diagnosis(dump="port", model="model", unexplained=wrong)).splitlines()[-1]
    assert last == f"to learn more of b, dump what lies in it: {', '.join(inner[:4])} and 1 more"
