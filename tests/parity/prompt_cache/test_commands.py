"""`generate --save-cache` and `--load-cache`: the same text, and what is refused. By law."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.cli.cached import CacheFiles
from lockstep.parity.prompt_cache import load_cache
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.safetensors import SafetensorsFile
from tests.parity.conftest import DEMO
from tests.reference.caches.test_models_with_caches import FOLDERS
from tests.sampled import sampled

ASK = ["generate", str(DEMO), "--prompt", "What is 2+2?", "--chat", "--json", "-"]
GEMMA = str(DEMO.parent / "gemma4")


@sampled(3, "rotating-cpu")
@pytest.mark.parametrize("backend", ["reference", "cpu", "mlx"])
@pytest.mark.parametrize(
    "cache",
    [[], ["--cache", "int8"], ["--cache", "preallocated"], ["--cache", "sliding"],
     ["--cache", "rotating", "--cache-size", "64", "--keep", "4"]],
    ids=lambda one: one[1] if one else "default",
)  # fmt: skip
def test_the_answer_is_the_same_from_a_file(lockstep, tmp_path, backend, cache):
    """By law: asked again, all of the question but its last token comes from the file."""
    path = str(tmp_path / "cache.safetensors")
    first = lockstep(*ASK, "--backend", backend, *cache, "--save-cache", path)
    again = lockstep(*ASK, "--backend", backend, *cache[:2], "--load-cache", path)
    assert (first.code, again.code) == (0, 0), again.err
    one, other = json.loads(first.out), json.loads(again.out)
    assert one["tokens"] == other["tokens"] and "cached_tokens" not in one
    assert other["cached_tokens"] == other["prompt_tokens"] - 1
    held = load_cache(path, reference.load(DEMO)).tokens[0].tolist()
    assert held[one["prompt_tokens"] :] == one["tokens"][:-1]


def test_a_file_can_be_gone_on_with_and_written_again(lockstep, tmp_path):
    """By hand: the second run reads what the first left, and leaves both."""
    paths = [str(tmp_path / name) for name in ("one.safetensors", "two.safetensors")]
    short = ["generate", str(DEMO), "--ignore-eos", "--json", "-", "--tokens", "5,6,7"]
    lockstep(*short, "--max-tokens", "4", "--save-cache", paths[0])
    longer = ["--load-cache", paths[0], "--save-cache", paths[1]]
    found = json.loads(lockstep(*short, "--max-tokens", "9", *longer).out)
    assert found["cached_tokens"] == 2
    shapes = [SafetensorsFile(path).entries["tokens"].shape for path in paths]
    assert shapes == [(1, 6), (1, 11)]
    said = lockstep(*short[:-4], "--tokens", "5,6,9,9", "--max-tokens", "3", *longer)
    assert "2 of 4 from the cache" in said.out


@pytest.mark.parametrize(
    ("more", "what"),
    [(["--load-cache", "not-there"], "not-there: no such file"),
     (["--load-cache", f"{DEMO}/model.safetensors"], "is no saved cache: its format is 'mlx'"),
     (["--load-cache", "CACHE", "--cache", "int8"], "is a cache that is growing, but --cache is"),
     (["--load-cache", "CACHE", "--cache-size", "9"], "says its own; leave out --cache-size"),
     (["--load-cache", "CACHE", "--dtype", "float16"], "holds 'float32', but the model computes"),
     (["--load-cache", "CACHE", "--prompt", "x", GEMMA], "is a cache of 'qwen3', but gemma4 is"),
     (["--cache", "rotating"], "one that is rotating needs 1 or more (--cache-size)"),
     (["--cache", "int8", "--recent", "3"], "recent=3, but a cache that is int8 treats all"),
     (["--keep", "3"], "keep=3, but a cache that is growing keeps all that is seen"),
     (["--save-cache", "not/there"], "not/there: cannot be written: its folder is not there"),
     (["--save-cache", "."], "cannot be written: it is a folder"),
     (["--save-cache", "CACHE", "--max-tokens", "0"], "--max-tokens 0 reads nothing; with 1")],
)  # fmt: skip
def test_what_is_refused(lockstep, tmp_path, more, what):
    path = str(tmp_path / "cache.safetensors")
    lockstep("generate", str(DEMO), "--tokens", "5,6", "--max-tokens", "2", "--save-cache", path)
    more = [path if one == "CACHE" else one for one in more]
    begin = ["generate"] if GEMMA in more else ["generate", str(DEMO), "--tokens", "5,6"]
    said = lockstep(*begin, *more)
    assert said.code == 2 and what in said.err
    assert len([line for line in said.err.splitlines() if "error" in line]) == 1


def test_spoilt_bytes_are_refused_or_do_no_harm(lockstep, tmp_path):
    """By law: of one byte of a right file that is another, whichever it is."""
    path, model = tmp_path / "cache.safetensors", reference.load(DEMO)
    lockstep("generate", str(DEMO), "--tokens", "5,6", "--max-tokens", "2",
             "--save-cache", str(path))  # fmt: skip
    right, rng, refused = path.read_bytes(), np.random.default_rng(6), 0
    header = 8 + int.from_bytes(right[:8], "little")
    for place in [*rng.integers(0, header, 120), *rng.integers(header, len(right), 20)]:
        spoilt = bytearray(right)
        spoilt[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(spoilt)
        try:
            assert load_cache(path, model).cache.positions.length == 3
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error) and path.name in str(error)
    assert refused > 90


def test_a_decoder_without_order_is_refused():
    """By hand: what such a cache holds is no beginning of a text."""
    options = SimpleNamespace(load_cache=None, save_cache="cache.safetensors")
    decoder = SimpleNamespace(in_order=False, counts=lambda: {"name": "shuffled"})
    with pytest.raises(InputError, match="decoder shuffled does not keep the order of the text"):
        CacheFiles(options, decoder)


def test_masks_are_filled_in_from_a_preallocated_cache(lockstep, tmp_path):
    """By law: WeDLM asks for more room than the context has, and goes on from what it saved."""
    path = str(tmp_path / "cache.safetensors")
    ask = ["generate", str(FOLDERS["qwen3"]), "--backend", "cpu", "--decoder", "wedlm",
           "--mask-id", "3", "--tokens", "5,6,7", "--ignore-eos", "--json", "-"]  # fmt: skip
    plain = lockstep(*ask, "--max-tokens", "300", "--cache", "preallocated", "--save-cache", path)
    again = lockstep(*ask, "--max-tokens", "300", "--load-cache", path)
    assert (plain.code, again.code) == (0, 0), again.err
    one, other = json.loads(plain.out), json.loads(again.out)
    assert other["cached_tokens"] == 2 and one["tokens"] == other["tokens"]


def test_a_long_text_of_stretched_positions_is_the_plain_one(lockstep, tmp_path):
    """By law: 18 tokens, beyond the 16 that this model was trained for, are read at once."""
    path, text = str(tmp_path / "cache.safetensors"), [str(5 + one) for one in range(18)]
    ask = ["generate", str(FOLDERS["llama"]), "--json", "-", "--max-tokens", "8", "--tokens"]
    lockstep(*ask, ",".join(text[:8]), "--save-cache", path)
    plain, loaded = (json.loads(lockstep(*ask, ",".join(text), *more).out)
                     for more in ([], ["--load-cache", path]))  # fmt: skip
    assert loaded["cached_tokens"] == 0 and plain["tokens"] == loaded["tokens"]
