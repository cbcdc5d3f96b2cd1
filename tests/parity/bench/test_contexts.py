"""The profile over context lengths: bytes by hand and by law, memory by what was allocated."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lockstep import reference
from lockstep.fast import kernels
from lockstep.parity.bench import contexts, footprint
from lockstep.parity.bench.cache_bytes import cache_bytes, of_codes
from lockstep.reference.stores.kinds import KINDS, CacheOptions

MB, WITNESSES = 1 << 20, Path(__file__).parents[2] / "witnesses"


def test_bytes_of_codes_by_hand():
    """A head of 128 in float32: int8 has two scales, affine also two offsets, turbo lengths."""
    assert of_codes("growing", 128, 4) == 1024
    assert of_codes("int8", 128, 4) == 2 * (128 + 8)
    assert of_codes("affine8", 128, 4) == 2 * (128 + 16)
    assert of_codes("affine4", 128, 2) == 2 * (64 + 8)
    assert of_codes("turbo3", 128, 2) == 52 + 50  # as caches.md says
    assert of_codes("turbo3-mse", 128, 2) == 50 + 50


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_holds_what_arithmetic_says(demo, kind):
    """By law, on the reference, whose stores have no room behind them but that of "growing"."""
    told = {"size": 16, "keep": 4} if kind.startswith("rotating") else {}
    told |= {"room": 40} if kind == "preallocated" else {}
    told |= {"recent": 8} if kind.startswith("turbo") else {}
    model = reference.load(demo)
    cache = model.make_cache(kind, **told)
    model.forward(np.full((1, 39), 3), cache=cache, last_only=True)
    model.forward([[3]], cache=cache)
    room = 256 if kind == "growing" else 40
    assert cache.nbytes == cache_bytes(kind, model.config, 4, room, CacheOptions(**told))


@pytest.mark.parametrize("kind", ["concatenating", "sliding", "affine4", "turbo2"])
def test_layers_of_their_own_kind_are_counted_as_such(gemma, kind):
    """By law: windows, layers without keys, and heads of a width that has no codes."""
    model = reference.load(gemma)
    cache = model.make_cache(kind)
    model.forward(np.full((1, 39), 3), cache=cache, last_only=True)
    model.forward([[3]], cache=cache)
    assert cache.nbytes == cache_bytes(kind, model.config, 4, 40, CacheOptions())


@pytest.mark.parametrize("path", ["gpt2/original", "qwen3_moe/separate", "llama/mistral_window"])
def test_windows_are_counted_whether_or_not_a_config_tells_layers_apart(path):
    """By law: GPT-2 has none, and Qwen3-MoE one for all layers or none."""
    model = reference.load(WITNESSES / path)
    cache = model.make_cache("sliding")
    model.forward(np.full((1, 39), 3), cache=cache, last_only=True)
    model.forward([[3]], cache=cache)
    assert cache.nbytes == cache_bytes("sliding", model.config, 4, 40, CacheOptions())


@pytest.fixture
def gemma():
    return WITNESSES / "gemma4/effective"


def test_memory_is_what_was_allocated_and_no_file():
    """By hand: 64 MB are touched, 32 of them given back; a mapped file of 64 MB counts nowhere."""
    script = """
import json, mmap, sys, tempfile, tracemalloc
import numpy as np
from lockstep.parity.bench.footprint import begin_anew, footprint
tracemalloc.start()
with tempfile.TemporaryFile() as file:
    file.truncate(64 << 20)
    mapped = mmap.mmap(file.fileno(), 64 << 20, access=mmap.ACCESS_READ)
    begin_anew()
    before = footprint()
    sum(mapped[at] for at in range(0, 64 << 20, 4096))
    with_file = footprint()
    many = np.ones(64 << 20, np.uint8)
    del many
    some = np.ones(32 << 20, np.uint8)
    after = footprint()
    print(json.dumps([vars(one) for one in (before, with_file, after)]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    before, with_file, after = json.loads(done.stdout)
    assert with_file["files"] - before["files"] > 60 * MB
    assert abs(with_file["now"] - before["now"]) < 4 * MB
    assert 30 * MB < after["now"] - before["now"] < 36 * MB
    grew = after["peak"] - after["files"] - before["now"]
    assert 62 * MB < grew < 70 * MB


def test_the_numbers_of_macos_stand_where_its_header_has_them(monkeypatch):
    """By hand, from `struct rusage_info_v4` of sys/resource.h; the call itself was never made."""

    class Library:
        def proc_pid_rusage(self, pid, flavour, room):
            assert flavour == 4 and pid > 0
            numbers = (ctypes.c_uint64 * 35)(*range(35))
            ctypes.memmove(ctypes.addressof(room._obj) + 16, numbers, ctypes.sizeof(numbers))
            return 0

    monkeypatch.setattr(footprint.ctypes, "CDLL", lambda *all, **named: Library())
    monkeypatch.setattr(footprint.sys, "platform", "darwin")
    assert footprint.footprint() == footprint.Footprint(now=7, peak=28, files=0)


@pytest.fixture
def profile(capsys, monkeypatch):
    """Return the command line, and what it was told to measure; rows come from a list."""
    asked = []

    def measured(options, one):
        asked.append((one["kind"], one["length"]))
        if one["kind"] == "int8" and options.json is not None:
            raise KeyboardInterrupt
        figures = {"prefill_s": 1.0, "prefill_cpu_s": 2.0, "step_s": 0.002, "step_cpu_s": 0.003,
                   "cache_arithmetic": 10**6,
                   "cache_held": 2 * 10**6, "loaded": 10**7, "peak": 4 * 10**7,
                   "files": 10**7}  # fmt: skip
        return one | (figures if one["length"] < 20 else {"ended": "by signal 9"})

    monkeypatch.setattr(contexts.profile, "__defaults__", (measured,))

    def run(*words):
        asked.clear()
        code = contexts.main([str(word) for word in words])
        return code, capsys.readouterr(), list(asked)

    return run


def test_an_interrupted_profile_goes_on(profile, tmp_path, plain, demo):
    rows, target = tmp_path / "rows", tmp_path / "j"
    run = ("--lengths", "8,20", "--caches", "growing,int8", "--resume", rows)
    code, said, asked = profile(plain, *run, "--json", target)
    assert (code, asked) == (130, [("growing", 8), ("int8", 8)])
    assert f"{rows} has 1 row" in said.err and not target.exists()
    code, said, asked = profile(plain, *run)
    assert (code, asked) == (0, [("int8", 8), ("growing", 20), ("int8", 20)])
    lines = said.out.splitlines()
    assert len(lines) == 5 and "ended by signal 9" in lines[3]
    assert lines[1].split() == ["8", "cpu", "growing", "1.00", "2.00", "2.0", "3.0", "1.0", "MB",
                                 "2.0", "MB",
                                "20.0", "MB", "10%", "40.0", "MB"]  # fmt: skip
    code, said, asked = profile(plain, *run[:1], "8", *run[2:], "--json", target)
    assert (code, asked, len(json.loads(target.read_text()))) == (0, [], 2)
    code, said, asked = profile(plain, *run)  # what died is tried again
    assert (code, asked) == (0, [("growing", 20), ("int8", 20)])
    code, said, asked = profile(demo, *run)
    assert (code, asked) == (2, []) and "is of a run with model " in said.err
    code, said, asked = profile(plain, *run, "--steps", "3")
    assert (code, asked) == (2, []) and "is of a run with steps 4, but here it is 3" in said.err


def test_a_row_that_is_none_is_refused(profile, tmp_path, plain):
    rows = tmp_path / "rows"
    run = (plain, "--lengths", "8", "--caches", "growing", "--resume", rows)
    assert profile(*run)[0] == 0
    head, row = rows.read_text().splitlines(keepends=True)
    good = json.loads(row)
    for bad in ({}, good | {"kind": [1]}, good | {"peak": None}, good | {"length": "8"}):
        rows.write_text(head + json.dumps(bad) + "\n")
        code, said, asked = profile(*run)
        assert (code, asked) == (2, []) and said.out == ""
        assert said.err == f"lockstep: error: {rows}: {contexts.NO_ROW}\n"


def test_rows_of_other_surroundings_are_not_mixed_in(profile, tmp_path, plain, monkeypatch):
    """By hand: without Numba a row would be of other kernels."""
    run = (plain, "--lengths", "8", "--caches", "growing", "--resume", tmp_path / "rows")
    assert profile(*run)[0] == 0
    monkeypatch.setattr(kernels, "available", lambda: False)
    code, said, asked = profile(*run)
    assert (code, asked) == (2, []) and "is of a run with kernels true" in said.err


def test_where_the_json_goes_is_looked_at_first(profile, tmp_path, plain):
    run = (plain, "--lengths", "8", "--caches", "growing")
    for words, core in (
        (("--json", tmp_path / "none/j"), "its folder does not exist"),
        (("--json", tmp_path), "is a folder"),
        (("--json", plain / "j"), "lies in the folder that is read"),
        (("--json", tmp_path / "j", "--resume", tmp_path / "j"), "name two files"),
    ):
        code, said, asked = profile(*run, *words)
        assert (code, asked) == (2, []) and core in said.err
        assert said.err.startswith("lockstep: error: ")
    code, said, asked = profile(*run, "--json", "-")
    assert code == 0 and json.loads(said.out)[0]["length"] == 8 and not Path("-").exists()


def test_figures_that_would_lie_are_left_out():
    """By hand: a cache is no twelve times what it is part of; a peak may be that of loading."""
    row = {"backend": "cpu", "kind": "growing", "length": 8, "prefill_s": 1, "prefill_cpu_s": 1,
           "step_s": 1, "step_cpu_s": 1, "cache_arithmetic": 10, "cache_held": 1200, "loaded": 500,
           "peak": 600, "files": 0}  # fmt: skip
    assert contexts.line_of(row)[9:12] == ("100 B", "", "600 B")
    row |= {"peak": 2900}
    assert contexts.line_of(row)[9:12] == ("2.4 kB", "50%", "2.9 kB")
    assert contexts.line_of(row | {"peak_is_alone": False})[9:12] == ("", "", "2.9 kB")


def test_a_cache_without_codes_for_such_heads_is_named(profile, plain):
    """By hand: heads of 20 numbers: an affine group has 32, whole numbers take any."""
    code, said, _ = profile(plain, "--lengths", "8", "--caches", "growing,int8,affine4,turbo3")
    assert code == 0 and "warning: affine4, turbo3: no codes for heads" in said.err


def test_what_cannot_be_measured_is_refused_at_once(profile, plain):
    code, said, asked = profile(plain, "--lengths", "8,100000")
    assert (code, asked) == (2, []) and "but the model's context is" in said.err
    for words in (("--lengths", "0"), ("--caches", "none"), ("--backends", "jax")):
        with pytest.raises(SystemExit):
            profile(plain, *words)


@pytest.mark.parametrize("backend", ["reference", "mlx"])
def test_a_row_is_measured_in_a_process_of_its_own(plain, backend):
    options = contexts.parser().parse_args([str(plain), "--chunk", "4", "--steps", "2"])
    row = contexts.measure(options, {"backend": backend, "kind": "rotating", "length": 10,
                                     "told": {"size": 8, "keep": 1}})  # fmt: skip
    assert row["cache_held"] >= row["cache_arithmetic"] > 0 and row["peak"] > row["loaded"] > 0
    assert row["prefill_s"] > 0 and row["step_s"] > 0
    assert ("device_peak" in row) == (backend == "mlx")


def test_a_process_that_fails_is_a_row_that_says_so(plain):
    options = contexts.parser().parse_args([str(plain)])
    one = {"backend": "reference", "kind": "growing", "length": 1, "told": {"nonsense": 1}}
    assert "TypeError" in contexts.measure(options, one)["ended"]
