"""`lockstep diff --tokens`: the prompt of dumps that say none. By hand."""

from safetensors.numpy import load_file, save_file

IDS = "3,1,4,1,5"


def test_diff_is_told_the_prompt_of_two_bare_dumps(lockstep, refuses, tmp_path, plain):
    """By hand: a dump without metadata says no prompt, and the traces' own one is the right one."""
    lockstep("trace", plain, "--tokens", IDS, "-o", tmp_path / "trace")
    for name in ("left", "right"):
        save_file(load_file(tmp_path / "trace"), tmp_path / name)
    run = ("diff", tmp_path / "left", tmp_path / "right", "--model", plain)
    refuses("neither side says it: pass --tokens", *run)
    assert lockstep(*run, "--tokens", IDS).code == 0
    assert lockstep(*run, "--tokens", "3,1,4,1,6").code == 1
    said = ("diff", tmp_path / "trace", tmp_path / "right", "--tokens", "3,1,4,1,6")
    refuses("the prompt is not that of", *said)
    refuses("not that of --tokens", *("diff", *2 * (tmp_path / "trace",), "--tokens", "3,1"))
