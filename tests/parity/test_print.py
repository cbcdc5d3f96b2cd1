"""Results at a Python prompt. By witness: what the commands print."""

from lockstep import parity, reference


def test_print_shows_in_python_what_the_commands_show(lockstep, tied, tmp_path):
    left, right = tmp_path / "left", tmp_path / "right"
    for out, backend in ((left, "reference"), (right, "cpu")):
        lockstep("trace", tied, "-o", out, "--tokens", "3,1,4", "--backend", backend)
    results = (parity.diff(left, right), parity.explain(reference.load(tied), right))
    for result, command in zip(results, (("diff", left), ("explain", tied)), strict=True):
        assert f"{result}\n" == lockstep(*command, right).out
        assert len(repr(result)) < 2000  # its taps are not in it
