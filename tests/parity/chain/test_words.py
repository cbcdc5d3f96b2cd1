"""A run in words: a .json file, or keys of a trace's metadata. By hand, and by law."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from lockstep import reference
from lockstep.parity.dumps.dump import open_dump
from lockstep.parity.dumps.trace_file import TraceFile
from lockstep.parity.dumps.validation import validate
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests.parity.conftest import DEMO, MODELS

ASKED = "What is 2+2?"
CHAT = f"<|im_start|>user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n"
RIGHT = {
    "prompt": ASKED, "chat": True, "tokens": load_tokenizer(DEMO).encode(CHAT),
    "sampling": {"temperature": 0.5}, "uniforms": [0.1, 0.2], "generated": [5, 699],
    "dtype": "float32",
}  # fmt: skip


@pytest.fixture
def words(tmp_path):
    """Write a run in words; a key that is None is left out."""

    def write(**changed):
        said = {key: one for key, one in {**RIGHT, **changed}.items() if one is not None}
        path = tmp_path / "port.json"
        path.write_text(json.dumps(said))
        return path

    return write


def test_the_values_are_those_of_metadata(words):
    dump = open_dump(words(), words=True)
    assert dump.shapes == {} and dump.tokens == RIGHT["tokens"]
    assert dump.about["prompt"] == ASKED and dump.about["chat"] == "true"
    assert json.loads(dump.about["sampling"]) == {"temperature": 0.5}


def test_without_being_asked_for_it_is_no_dump(words, refuses):
    with pytest.raises(InputError, match="holds no tensors"):
        open_dump(words())
    refuses("holds no tensors", "diff", words(), words())


def test_the_command_judges_it(words, lockstep):
    said = lockstep("explain", DEMO, words(sampling=None, uniforms=None, generated=None))
    assert said.code == 0 and "text to ids  15 ids  right" in said.out
    escaped = load_tokenizer(DEMO).encode(CHAT.replace("\n", "\\n"))
    only = {"sampling": None, "uniforms": None, "generated": None, "tokens": escaped}
    said = lockstep("explain", DEMO, words(**only), "--json", "-")
    found = json.loads(said.out)
    assert said.code == 1 and [one["id"] for one in found["faults"]] == ["escaped-newline"]
    assert found["stages"] == [{"stage": "tokenizer", "compared": 18, "right": False}]
    assert found["faults"][0]["seen"].startswith("18 ids for 15") and found["seconds"] > 0
    unsaid = words(**only, prompt=None, chat=None)
    assert lockstep("explain", DEMO, unsaid, "--prompt", ASKED, "--chat").code == 1


def test_what_has_no_name_is_shown_as_text(words, lockstep):
    only = {"sampling": None, "uniforms": None, "generated": None, "tokens": [5, 6, 7]}
    said = lockstep("explain", DEMO, words(**only))
    assert said.code == 1 and said.out.startswith("UNKNOWN")
    assert "number 0 is 5 ('&', of '&'(')" in said.out and "should be 698" in said.out


def test_a_report_is_made_of_it(words, lockstep, tmp_path):
    escaped = load_tokenizer(DEMO).encode(CHAT.replace("\n", "\\n"))
    path = tmp_path / "result.json"
    lockstep("explain", DEMO, words(tokens=escaped, generated=None), "--json", path)
    assert lockstep("report", path, "--html", tmp_path / "page.html").code in (0, 1)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "18 ids for 15" in page and "text to ids: 18 ids, wrong" in page


def test_a_trace_says_the_same_in_its_metadata(tmp_path, lockstep):
    about = {"prompt": ASKED, "chat": "true"}
    path = tmp_path / "port.safetensors"
    with TraceFile(path, tokens=RIGHT["tokens"], dtype="float32", **about) as dump:
        reference.load(DEMO).forward([RIGHT["tokens"]], trace=dump)
    said = lockstep("explain", DEMO, path)
    assert said.code == 0 and "ids to logits" in said.out


@pytest.mark.parametrize(
    ("core", "changed"),
    [
        ("no uniforms: choices are judged by likelihood", {"uniforms": None}),
        ("1 uniform for 2 choices", {"uniforms": [0.5]}),
        ("neither prompt nor decoded", {"prompt": None, "chat": None, "generated": None}),
        ("not what was chosen", {"generated": None}),
        ("no tokens: nothing can be judged", {"tokens": None}),
        ("no dtype: its choices are judged as", {"dtype": None}),
        ("no key of the format, so not read: 'uniform'", {"uniform": [0.5]}),
    ],
)
def test_warnings(core, changed, words):
    found = validate(words(**changed)).warnings
    assert any(core in line for line in found), found


def test_nothing_to_warn_of(words, lockstep):
    assert validate(words()).warnings == []
    others = {"library": "mlx_lm", "rotary_neighbours": "8", "batch_decoded": [[1]]}
    assert validate(words(**others)).warnings == []
    said = lockstep("dump", "validate", words())
    assert said.code == 0 and "valid, a run in words" in said.out and "tensor" in said.out


@pytest.mark.parametrize(
    ("core", "changed"),
    [
        ("uniforms must be a JSON list of numbers from 0 to below 1", {"uniforms": [1.0]}),
        ("sampling has 'top-k', but may have", {"sampling": {"top-k": 3}}),
        ("top_k of sampling is 'x', but should be a whole number", {"sampling": {"top_k": "x"}}),
        ("top_k of sampling is 2.5, but should be a whole", {"sampling": {"top_k": 2.5}}),
        ("do_sample of sampling is 1, but should be true", {"sampling": {"do_sample": 1}}),
        ("repetition_penalty of sampling is 0, but", {"sampling": {"repetition_penalty": 0}}),
        ("is 1e-308, but should be 1e-06 or", {"sampling": {"repetition_penalty": 1e-308}}),
        ("sampling: top_p=0, but should be above 0", {"sampling": {"top_p": 0}}),
        ("sampling: temperature=-1, but", {"sampling": {"temperature": -1}}),
        ("chat must be true, false or a JSON object", {"chat": 3}),
        ("messages must be a JSON list of objects with role", {"messages": ["hi"]}),
        ("generated must be a JSON list of token ids", {"generated": [-1]}),
        ("trace version '2', but should be '1'", {"format": "lockstep-trace", "version": "2"}),
    ],
)
def test_nonsense_is_refused(core, changed, words, refuses):
    refuses(core, "dump", "validate", words(**changed))
    refuses(core, "explain", DEMO, words(**changed))


@pytest.mark.parametrize(
    ("core", "sampling"),
    [
        (
            "temperature of sampling is an integer of 1329 bits, but should be a number below 2^63",
            '{"temperature": 1%s}' % ("0" * 400),
        ),
        ("but should be a number below 2^63", '{"temperature": -1%s}' % ("0" * 300)),
        ("but should be a number below 2^63", '{"top_p": NaN}'),
        ("should be a whole number below 2^63", '{"max_new_tokens": 1%s}' % ("0" * 400)),
        ("sampling must be JSON, not", '{"max_new_tokens": 1%s}' % ("0" * 5000)),
    ],
)
def test_numbers_without_end_in_a_trace_are_refused(core, sampling, tmp_path, refuses):
    """By hand: JSON sets no limit to a number, and metadata is text."""
    logits = np.asarray(reference.load(MODELS / "untied_float32").forward([[1, 2, 3]]))
    about = {"format": "lockstep-trace", "version": "1", "tokens": "[1, 2, 3]",
             "generated": "[4]", "sampling": sampling}  # fmt: skip
    save_file({"logits": logits}, tmp_path / "port.safetensors", about)
    refuses(core, "explain", MODELS / "untied_float32", tmp_path / "port.safetensors")


def test_nothing_to_judge_is_refused(words, refuses):
    nothing = dict.fromkeys(RIGHT)
    refuses("says nothing that can be judged", "explain", DEMO, words(**nothing))


def test_a_bare_dump_may_mean_anything_by_its_keys(tmp_path, lockstep):
    """By hand: `sampling` of a file that is no trace is somebody's own word."""
    path = tmp_path / "port.safetensors"
    logits = reference.load(MODELS / "untied_float32").forward([[1, 2, 3]])
    save_file(
        {"logits": np.asarray(logits)},
        path,
        {"sampling": "nucleus", "tokens": "[1, 2, 3]", "generated": "yes"},
    )
    assert lockstep("dump", "validate", path).code == 0
    assert lockstep("explain", MODELS / "untied_float32", path).code == 0


@pytest.mark.parametrize(
    ("core", "setting"),
    [
        ("temperature=-1, but should be 0, or from", {"temperature": -1}),
        ("temperature=101, but should be 0, or from", {"temperature": 101}),
        ("top_p=1.1, but should be above 0 and at most 1", {"top_p": 1.1}),
        ("min_p=-0.1, but should be from 0 to 1", {"min_p": -0.1}),
        ("typical_p=2, but should be above 0", {"typical_p": 2}),
        ("top_k of sampling is -1, but should be a whole number", {"top_k": -1}),
        ("penalty_window=0, but should be 1 or more", {"penalty_window": 0}),
        ("repetition_penalty=101, but should be above 0 and at most", {"repetition_penalty": 101}),
        ("presence_penalty=-101, but should be from", {"presence_penalty": -101}),
        (
            "frequency_penalty of sampling is '2', but should be a number",
            {"frequency_penalty": "2"},
        ),
        ("logit_bias of sampling is [[1, 2]], but should be a JSON", {"logit_bias": [[1, 2]]}),
        ("logit_bias of sampling has '-1': 2, but should", {"logit_bias": {"-1": 2}}),
        ("logit_bias of sampling has '1': true, but should", {"logit_bias": {"1": True}}),
        ("logit_bias is set, but ember has none", {"logit_bias": {"1": 2}, "semantics": "ember"}),
        ("semantics of sampling is 3, but should be the name", {"semantics": 3}),
        ("semantics='vLLM', but should be one of lockstep", {"semantics": "vLLM"}),
        ("typical_p is set, but mlx-lm has none", {"typical_p": 0.5, "semantics": "mlx-lm"}),
    ],
)
def test_bounds_of_settings(core, setting, words, refuses):
    refuses(core, "explain", DEMO, words(sampling=setting))
    refuses(core, "dump", "validate", words(sampling=setting))


@pytest.mark.parametrize("key", ["prompt", "dtype", "backend", "padding"])
def test_a_text_is_a_string(key, words, refuses):
    refuses(f"{key} must be a string, not 5", "explain", DEMO, words(**{key: 5}))


def npz(path, steps):
    """Write a prompt of five tokens and steps of one, without any words."""
    model = reference.load(MODELS / "untied_float32")
    cache, taps = model.make_cache(), {}
    model.forward([TOKENS], cache=cache, trace=lambda name, value: taps.update({name: value}))
    for step in range(1, steps + 1):
        put = {}
        model.forward([[step]], cache=cache, trace=lambda n, v, put=put: put.update({n: v}))
        taps |= {f"step.{step}/{name}": value for name, value in put.items()}
    np.savez(path, **{name: np.asarray(value) for name, value in taps.items()})


TOKENS = [3, 14, 15, 92, 65]


def test_ids_of_a_dump_without_words_are_counted(tmp_path, lockstep, refuses):
    """By hand: five of the prompt, and one for each of three steps."""
    path, model = tmp_path / "port.npz", MODELS / "untied_float32"
    npz(path, 3)
    told = ",".join(map(str, [*TOKENS, 1, 2, 3]))
    assert lockstep("explain", model, path, "--tokens", told).code == 0
    core = "--tokens has 5 ids, but should have 8: the prompt's 5, and what each of 3 steps"
    refuses(core, "explain", model, path, "--tokens", ",".join(map(str, TOKENS)))
