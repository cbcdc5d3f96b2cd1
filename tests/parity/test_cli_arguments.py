"""Arguments in a strict grammar: what is refused is refused in one line, before anything runs."""

import pytest

from lockstep.parity.cli.arguments import ids
from lockstep.parity.cli.parser import COMMANDS

GENERATE = ("generate", "MODEL", "--tokens", "1")


@pytest.mark.parametrize(
    ("core", "arguments"),
    [
        ("required: COMMAND", ()),
        ("invalid choice: 'frobnicate'", ("frobnicate",)),
        ("unrecognized arguments: --frob", ("inspect", "MODEL", "--frob")),
        ("required: MODEL", ("inspect",)),
        ("unrecognized arguments", ("inspect", "MODEL", "--tens")),  # no abbreviations
        ("one of the arguments --prompt --tokens is required", ("check", "MODEL")),
        ("not allowed with argument", ("check", "MODEL", "--prompt", "x", "--tokens", "1")),
        ("expected one argument", ("check", "MODEL", "--prompt")),
        ("expected one argument", ("check", "MODEL", "--prompt", "-x")),
        ("invalid choice: 'cuda'", ("check", "MODEL", "--tokens", "1", "--backend", "cuda")),
        ("invalid choice: 'int8'", ("check", "MODEL", "--tokens", "1", "--dtype", "int8")),
        ("required: RIGHT", ("diff", "LEFT")),
        ("required: -o/--out", ("trace", "MODEL", "--tokens", "1")),
        ("not allowed with argument", (*GENERATE, "--seed", "1", "--uniforms", "u")),
        ("--chat: goes with --prompt", (*GENERATE, "--chat")),
        ("temperature=101.0, but should be 0, or", (*GENERATE, "--temperature", "101")),
        ("temperature=-1.0", (*GENERATE, "--temperature", "-1")),
        ("top_p=0.0, but should be above 0", (*GENERATE, "--top-p", "0")),
        ("top_p=1.5", (*GENERATE, "--top-p", "1.5")),
        ("min_p=2.0, but should be from 0 to 1", (*GENERATE, "--min-p", "2")),
        ("typical_p=0.0, but should be above 0", (*GENERATE, "--typical-p", "0")),
        ("repetition_penalty=0.0, but", (*GENERATE, "--repetition-penalty", "0")),
        ("frequency_penalty=-101.0, but", (*GENERATE, "--frequency-penalty", "-101")),
        ("presence_penalty=1e+30, but", (*GENERATE, "--presence-penalty", "1e30")),
        ("penalty_window=0, but should be 1", (*GENERATE, "--penalty-window", "0")),
        ("one value a token", (*GENERATE, "--logit-bias", "1:2,1:3")),
        ("invalid choice: 'int4'", (*GENERATE, "--activations", "int4")),
        ("invalid choice: 'sglang'", (*GENERATE, "--semantics", "sglang")),
        ("min_p is set, but ember has none", (*GENERATE, "--min-p", "1", "--semantics", "ember")),
    ],
)
def test_a_command_that_cannot_be_meant(refuses, core, arguments):
    refuses(core, *arguments)


def test_an_unknown_option_leads_to_the_help_of_its_command(refuses):
    assert "(see lockstep inspect --help)" in refuses("--frob", "inspect", "MODEL", "--frob")


@pytest.mark.parametrize(
    "text", ["nan", "inf", "1_0.5", "0x1", "", " 1", "1e", "١", "1e99999", "1,5"]
)
@pytest.mark.parametrize("option", ["--temperature", "--top-p", "--min-p"])
def test_only_plain_decimal_numbers_are_numbers(refuses, option, text):
    refuses("is not a decimal number", *GENERATE, option, text)


@pytest.mark.parametrize("text", ["-1", "1_0", "1.0", "١٢", "", "+1", "1e3", "9" * 19, "lots"])
@pytest.mark.parametrize("option", ["--seed", "--top-k", "--max-tokens"])
def test_only_plain_digits_are_whole_numbers(refuses, option, text):
    refuses("is not a whole number from 0", *GENERATE, f"{option}={text}")


@pytest.mark.parametrize(
    "text", ["", "1", "1:", ":1", "1:x", "-1:2", "1:inf", "1:nan", "1:2,", "1:2 ,3:4", "1:2:3"]
)
def test_only_ids_with_numbers_are_biases(refuses, text):
    refuses("is not a list of token ids and numbers such", *GENERATE, f"--logit-bias={text}")


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "1,,2", "1,", "-1", "1 2", "1 ,2", "1,  2", "1,\n2", "1.0", "٣", "1_0", "1;2"),
        *("[]", "[", "[1", "1]", "[[1]]", "[1,]", "[ 1 ]"),
    ],
)
def test_only_a_list_of_ids_is_one(refuses, text):
    refuses("is not a list of token ids such as 1,2,3", "check", "MODEL", f"--tokens={text}")


@pytest.mark.parametrize("text", ["7,151644,0", "7, 151644, 0", "[7, 151644, 0]", "[7,151644,0]"])
def test_ids_are_read_as_python_and_json_print_them(text):
    assert ids(text) == [7, 151644, 0]


def test_a_huge_or_hostile_argument_is_clipped_and_escaped(refuses):
    line = refuses(
        "is not a list of token ids", "check", "MODEL", "--tokens", "\x1b[31m" + "9" * 10**6
    )
    assert len(line) < 300
    refuses("\\x1b", "check", "MODEL", "--tokens", "1", "--backend", "\x1b[31m\n::error::")


@pytest.mark.parametrize(
    ("core", "model"),
    [
        ("not a path", ""),
        ("not a path", "a\0b"),
        ("no such folder", "missing"),
        ("no such folder", "missing/"),
        ("not in the local Hugging Face cache", "nobody/nothing"),
        ("is an address", "https://example.org/model"),
        ("is an address", "file:///tmp"),
        ("is an address", "hf://a/b"),
        ("error", "x" * 5000),
        ("error", "m\udcff"),
        ("error", "\x1b[31m\n::error::pwned"),
        ("config.json", "."),
        ("is neither a folder", "file"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "taps", "check", "generate"])
def test_a_model_that_is_none(refuses, tmp_path, monkeypatch, command, core, model):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "file").write_text("")
    prompt = ("--tokens", "1") if command in ("check", "generate") else ()
    refuses(core, command, model, *prompt)


@pytest.mark.parametrize("command", ["check", "trace", "generate"])
@pytest.mark.parametrize("backend", ["reference", "cpu", "mlx"])
def test_token_ids_and_lengths_are_those_of_the_model(refuses, plain, tmp_path, command, backend):
    rest = ("-o", tmp_path / "t") if command == "trace" else ()
    run = (command, plain, "--backend", backend, *rest)
    refuses("token id 120, but should be 0..119 (token 1 of the prompt)", *run, "--tokens", "1,120")
    refuses("token id 999999999999999999", *run, "--tokens", "9" * 18)
    refuses(
        "a prompt of 600 tokens, but the model's context is", *run, "--tokens", "1" + ",1" * 599
    )
    assert list(tmp_path.iterdir()) == []


def test_a_run_longer_than_the_context_is_refused(refuses, plain):
    refuses("1 token and 5000 steps", "check", plain, "--tokens", "1", "--decode", "5000")


def test_float64_is_for_the_reference(refuses, lockstep, plain):
    refuses("float64", "check", plain, "--tokens", "1", "--dtype", "float64")
    said = lockstep("generate", plain, "--tokens", "1", "--max-tokens", "1",
                    "--backend", "reference", "--dtype", "float64")  # fmt: skip
    assert said.code == 0


def test_text_needs_a_tokenizer_and_has_to_be_text(refuses, plain, demo):
    refuses("tokenizer.json", "check", plain, "--prompt", "hello")
    refuses("tokenizer.json", "tokenize", plain, "--prompt", "hello")
    refuses("has no tokens", "check", demo, "--prompt", "")
    refuses("", "check", demo, "--prompt", "\udcff")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(lockstep, command):
    said = lockstep(command, "--help")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"usage: lockstep {command} ")
    assert f"\nexample:\n  lockstep {command}" in said.out
    assert "--json FILE" in said.out
    assert all(len(line) <= 100 for line in said.out.splitlines())


def test_the_help_lists_commands_and_exit_codes(lockstep):
    said = lockstep("--help")
    assert said.code == 0
    assert all(f"\n    {command} " in said.out for command in COMMANDS)
    assert "130 interrupted" in said.out
    assert lockstep("--version").out.startswith("lockstep ")
