"""A right port keeps every law; each planted bug breaks the one that is about it. By law."""

import json
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.laws.python_port import PythonPort
from lockstep.parity.laws.run import laws
from lockstep.parity.noise import namespace
from lockstep.parity.progress import Progress
from lockstep.reference import load, ops
from tests.sampled import sampled

VOCABULARY = 120
FINITE, WIDTH, REPEAT = "finite logits", "vocabulary width", "the same tokens twice"
FIRST, LATER = "the first token by itself", "later tokens do not matter"
STEPS, BATCH = "prefill equals decoding", "the rest of the batch does not matter"
PADDING = "padding does not matter"
EVERY = {FINITE, WIDTH, REPEAT, FIRST, LATER, STEPS, BATCH, PADDING}


@pytest.fixture
def model(plain):
    return load(plain)


def found(port, *, vocabulary=VOCABULARY, dtype=None, length=8):
    _, findings = laws(
        PythonPort("port", port), vocabulary=vocabulary, length=length, seed=1, dtype=dtype,
        progress=Progress(9),
    )  # fmt: skip
    return {one.law: one for one in findings}


def with_status(findings, status) -> set[str]:
    return {name for name, one in findings.items() if one.status == status}


def planted(model, **change):
    model.ops = namespace(change)
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_reference_keeps_every_law(plain, dtype):
    assert with_status(found(load(plain, dtype=dtype)), "PASS") == EVERY


def test_a_fast_backend_keeps_every_law(plain):
    from lockstep import fast

    assert with_status(found(fast.load(plain, backend="mlx")), "PASS") == EVERY


def mask_off(query, key, *, window):
    return np.broadcast_to(
        (key >= 0)[:, None, None, :], (len(key), 1, query.shape[1], key.shape[1])
    )


def padding_seen(query, key, *, window):
    return key[:, None, None, :] <= query[:, None, :, None]


def late_decoding(x, positions, frequencies, *, factor):
    late = positions + 1 if positions.shape[1] == 1 else positions
    return ops.rope(x, late, frequencies, factor=factor)


def swapped_rows(x):
    return ops.merge_heads(x)[::-1]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"causal_mask": mask_off}, {FIRST, LATER}),
        ({"rope": late_decoding}, {STEPS}),
        ({"causal_mask": padding_seen}, {PADDING}),
        ({"merge_heads": swapped_rows}, {BATCH}),
    ],
    ids=["no mask", "cache offset by one", "padding seen", "batch mixed"],
)
def test_a_bug_breaks_its_law_alone(model, change, broken):
    findings = found(planted(model, **change))
    assert with_status(findings, "BROKEN") == broken
    assert all(findings[law].points_to for law in broken)


def test_noise_breaks_one_law_and_excuses_the_others(model):
    rng = np.random.default_rng(0)

    def noisy(x, y):
        return ops.add(x, y) + rng.normal(scale=0.01, size=x.shape).astype(x.dtype)

    findings = found(planted(model, add=noisy))
    assert with_status(findings, "BROKEN") == {REPEAT}
    assert findings[REPEAT].figure > findings[REPEAT].allowed


def test_what_a_call_leaves_behind_is_seen(model):
    """By hand: the second prompt is taken for the first one's continuation."""
    cache = model.make_cache()
    findings = found(lambda tokens: model.forward(tokens, cache=cache))
    assert findings[REPEAT].status == "BROKEN"
    assert findings[STEPS].status == findings[PADDING].status == "NOT TRIED"


def test_a_number_that_is_none(model):
    def spoilt(x, *, heads):
        out = ops.split_heads(x, heads=heads)
        return np.where(out > 0, out, np.nan).astype(out.dtype)

    findings = found(planted(model, split_heads=spoilt))
    assert with_status(findings, "BROKEN") == {FINITE}


def test_the_width_is_counted(model):
    assert with_status(found(model, vocabulary=90), "BROKEN") == {WIDTH}
    assert found(model, vocabulary=None)[WIDTH].status == "NOT TRIED"


def test_half_precision_behind_wide_logits_is_told_by_its_bits(plain):
    """By hand: bfloat16 logits, widened, are judged as bfloat16."""
    half = load(plain, dtype="bfloat16")
    bench, _ = laws(
        PythonPort("port", lambda tokens: half.forward(tokens).astype(np.float32)),
        vocabulary=None, length=6, seed=0, dtype=None, progress=Progress(9),
    )  # fmt: skip
    assert bench.dtype == "bfloat16"


def test_one_token_leaves_little_to_try(model):
    findings = found(model, length=1)
    assert with_status(findings, "BROKEN") == set()
    assert with_status(findings, "NOT TRIED") == {FIRST, LATER, STEPS, PADDING}


MODULE = """
    import numpy as np
    from lockstep import reference

    model = reference.load({plain!r})

    def flat(tokens):
        return model.forward(tokens)[0]

    def refuses(tokens):
        raise RuntimeError("no\\nsuch kernel")

    def short(tokens):
        return model.forward(tokens)[:, 1:]

    def talks(tokens):
        print("thinking")
        return model.forward(tokens)

    def leaves(tokens):
        raise SystemExit(0)

    table = [1, 2]
"""


@pytest.fixture
def module(plain, tmp_path, monkeypatch):
    """A module of the user's own in the working folder."""
    (tmp_path / "laws_port.py").write_text(textwrap.dedent(MODULE).format(plain=str(plain)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "laws_port"
    sys.modules.pop("laws_port", None)


def test_the_command_tells_of_each_law(lockstep, module, tmp_path):
    said = lockstep("laws", f"{module}:model", "--vocab", VOCABULARY, "--json", "found.json")
    assert said.code == 0 and "8 laws: 8 PASS" in said.out
    assert json.loads((tmp_path / "found.json").read_text())["verdict"] == "kept"


def test_a_port_of_one_sequence_is_enough(lockstep, module):
    said = lockstep("laws", f"{module}:flat", "--vocab", VOCABULARY)
    assert said.code == 0 and "takes no batch of two" in said.out


@pytest.mark.parametrize(
    ("name", "core"),
    [
        ("missing", "module 'laws_port' has no attribute 'missing'"),
        ("refuses", "raised RuntimeError: 'no\\x0asuch kernel'"),
        ("short", "logits of shape [1, 11, 120], but should be [1, 12, V]"),
        ("leaves", "raised SystemExit: '0'"),
        ("table", "a list, which cannot be called"),
    ],
)
def test_a_bad_callable_is_refused_in_one_line(refuses, module, name, core):
    refuses(core, "laws", f"{module}:{name}", "--vocab", VOCABULARY)


def test_what_a_port_prints_is_kept_out_of_the_json(lockstep, module):
    said = lockstep("laws", f"{module}:talks", "--vocab", VOCABULARY, "--json", "-")
    assert json.loads(said.out)["verdict"] == "kept"
    assert "thinking" in said.err


def test_a_module_that_is_not_there(refuses):
    refuses("cannot be imported: ModuleNotFoundError", "laws", "no_such_module_here:port")


SCRIPT = """
    import sys
    import numpy as np

    tokens = [int(word) for word in sys.stdin.readline().split(",")]
    table = np.random.default_rng(0).standard_normal((50, 50)).astype(np.float32)
    seen = np.cumsum(table[tokens], axis=0){change}
    sys.stdout.buffer.write(seen.astype("<f4").tobytes())
"""


@pytest.fixture
def script(tmp_path):
    def write(change="", text=SCRIPT):
        path = tmp_path / "port.py"
        path.write_text(textwrap.dedent(text).replace("{change}", change))
        return f"{sys.executable} {path}"

    return write


def test_a_command_that_keeps_them(lockstep, script):
    """By hand: a sum over the tokens so far is causal."""
    said = lockstep("laws", script(), "--vocab", 50, "--length", 5)
    assert said.code == 0, said
    assert "8 laws: 5 PASS, 0 BROKEN, 3 NOT TRIED" in said.out


def test_a_command_that_sees_the_future(lockstep, script):
    """By hand: a sum over all tokens is not."""
    said = lockstep("laws", script("[-1:].repeat(len(tokens), 0)"), "--length", 5)
    assert said.code == 1
    assert "later tokens do not matter: broken, which points to" in said.out


@sampled(0)
def test_a_command_may_write_safetensors(lockstep, tmp_path):
    """By witness: the bytes are those of the safetensors package."""
    path = tmp_path / "port.py"
    path.write_text(
        "import sys, numpy as np\nfrom safetensors.numpy import save\n"
        "tokens = np.array([int(word) for word in sys.stdin.readline().split(',')])\n"
        "logits = np.sin(np.outer(np.cumsum(tokens), np.arange(1, 30))).astype(np.float32)\n"
        "sys.stdout.buffer.write(save({'logits': logits}))\n"
    )
    said = lockstep("laws", f"{sys.executable} {path}", "--vocab", 29, "--length", 4)
    assert said.code == 0 and "logits in float32" in said.out


@pytest.mark.parametrize(
    ("text", "core"),
    [
        ("raise SystemExit('no weights here')", "exit code 1; its last words: 'no weights here'"),
        ("print('hello there')", "wrote 12 bytes, but should be float32 logits of 5 tokens"),
        ("pass", "wrote 0 bytes"),
        ("import time; time.sleep(60)", "did not end within 1 s"),
    ],
)
def test_a_broken_command_is_refused_in_one_line(refuses, script, text, core):
    line = script(text=text)
    refuses(core, "laws", line, "--vocab", 50, "--length", 5, "--timeout", 1)


@pytest.mark.parametrize(
    ("arguments", "core"),
    [
        (["no-such-program-here"], "cannot be started: No such file or directory"),
        (["a 'quote"], "is no command: No closing quotation"),
        ([""], "an empty command"),
        (["true", "--length", "0"], "--length: 0, but should be 1 to"),
    ],
)
def test_a_bad_line_is_refused(refuses, arguments, core):
    refuses(core, "laws", *arguments)


def test_too_much_is_refused(refuses, script, monkeypatch):
    monkeypatch.setattr("lockstep.parity.laws.command_port.LARGEST", 100)
    refuses("wrote more than 100 bytes for one prompt", "laws", script(), "--vocab", 50)


def test_a_port_may_say_its_vocabulary():
    port = SimpleNamespace(vocab_size=9, forward=lambda tokens: np.ones((1, tokens.size, 9)))
    assert PythonPort("port", port).vocabulary == 9
