"""`lockstep generate --decoder wedlm` from the outside."""

import json
import shutil
from pathlib import Path

import pytest

from lockstep import fast
from lockstep.parity.decoders.wedlm import Wedlm
from lockstep.parity.demo import wedlm as scripted
from lockstep.parity.demo.wedlm import MASK
from lockstep.parity.generating.generation import Generation
from lockstep.parity.generating.timing import Clock
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.scheduling.diffusion_options import VARIANTS, DiffusionOptions
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from tests import gguf_bytes
from tests.diffusion_by_loop import Settings, checkpoint, scored_by, simulated
from tests.parity.conftest import DEMO, MODELS
from tests.parity.generating.test_chatting import chat, held_against_no_cache, without_template

WITNESSES = Path(__file__).parents[2] / "witnesses"
PROMPT = ("--tokens", "3,1,4,1,5")
WEDLM = ("--decoder", "wedlm")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wedlm")
    return checkpoint(folder, "8B", seed=1, sharp=2.5, mask_token_id=39)


@pytest.fixture
def written(lockstep, model):
    def run(*arguments):
        said = lockstep("generate", model, *PROMPT, *WEDLM, *arguments, "--json", "-")
        assert (said.code, said.err) == (0, ""), said
        return json.loads(said.out)

    return run


@pytest.mark.parametrize("backend", ["reference", "mlx", "cpu"])
@pytest.mark.parametrize("way", ["tencent", "mlx-port"])
def test_the_text_is_that_of_the_loop(written, model, backend, way):
    """By loop, with what each variant has by itself; stop ids are ignored by the port alone."""
    found = written("--backend", backend, "--wedlm", way, "--max-tokens", 20)
    port = way == "mlx-port"
    rules = Settings(
        39, 16, 0.3 if port else 0.4, 0.01 if port else 0.02, port, 1.0, 1e-10 if port else 0, port
    )
    tokens, runs = simulated(
        scored_by(model), [3, 1, 4, 1, 5], rules, most=20, stop=() if port else {2}, room=64
    )
    told = found["decoder"]
    assert found["tokens"] == tokens and told["steps"] == len(runs)
    assert (told["name"], told["variant"], told["mask_id"]) == ("wedlm", way, 39)
    assert told["tokens_per_forward"] == len(tokens) / told["forwards"]
    assert told["p_cache"] == len(tokens) / told["fed"]


def test_every_option_reaches_the_decoder(written):
    found = written("--window", 5, "--threshold", "none", "--position-penalty", 0.5,
                    "--penalty", "tempered", "--temperature", 0.25, "--mask-id", 38,
                    "--max-tokens", 4, "--steps")["decoder"]  # fmt: skip
    shown = {key: found[key] for key in ("window", "threshold", "position_penalty", "penalty",
                                         "temperature", "mask_id")}  # fmt: skip
    assert shown == {"window": 5, "threshold": None, "position_penalty": 0.5,
                     "penalty": "tempered", "temperature": 0.25, "mask_id": 38}  # fmt: skip
    assert len(found["trace"]) == found["steps"]
    assert found["trace"][0]["tokens"] == [38] * 5
    assert all(len(step["filled"]) == 1 for step in found["trace"][:-1])


@pytest.mark.parametrize(("engine", "heat"), [("vllm", 0.01), ("transformers", 0.001)])
def test_the_entropy_is_taken_at_the_temperature_of_the_draw(written, engine, heat):
    cold = ("--penalty", "tempered", "--temperature", 0.001, "--max-tokens", 2)
    assert written(*cold, "--semantics", engine)["decoder"]["temperature"] == heat


def test_one_seed_gives_one_text_on_every_backend(written):
    hot = ("--temperature", 0.9, "--top-p", 0.9, "--max-tokens", 16, "--window", 5)
    texts = {
        backend: [written(*hot, "--backend", backend, "--seed", seed)["tokens"] for seed in (1, 2)]
        for backend in ("reference", "mlx", "cpu")
    }
    assert texts["reference"] == texts["mlx"] == texts["cpu"]
    assert texts["cpu"][0] != texts["cpu"][1]


def test_the_temperature_comes_last_unless_others_are_followed(written):
    """At T = 9 top-p 0.5 before it leaves few tokens, and after it almost all."""
    hot = ("--temperature", 9, "--top-p", 0.5, "--max-tokens", 16, "--seed", 3)
    own = written(*hot)["tokens"]
    assert own == written(*hot, "--semantics", "wedlm")["tokens"]
    other = written(*hot, "--semantics", "lockstep")["tokens"]
    assert len(set(own)) < len(set(other))
    assert written(*hot, "--wedlm", "mlx-port", "--threshold", 0.1)["tokens"] == written(
        *hot, "--wedlm", "mlx-port", "--threshold", 0.1, "--semantics", "lockstep"
    )["tokens"]  # fmt: skip


def test_it_ends_where_the_context_ends(written):
    for count, ended in ((500, "context"), (60, "context"), (59, "max tokens")):
        found = written("--max-tokens", count, "--ignore-eos", "--wedlm", "mlx-port")
        assert len(found["tokens"]) == 64 - 5  # none lies beyond, not that of the last either
        assert found["ended_by"] == ended


def test_a_cache_of_fixed_room_has_enough(written):
    usual = written("--max-tokens", 7, "--ignore-eos")["tokens"]
    assert written("--max-tokens", 7, "--ignore-eos", "--cache", "preallocated")["tokens"] == usual
    assert len(usual) == 7


def test_steps_are_shown(lockstep, model):
    said = lockstep("generate", model, *PROMPT, *WEDLM, "--window", 2, "--max-tokens", 3, "--steps")
    lines = said.out.splitlines()
    assert lines[0].count(",") == 2 and lines[2].split()[:3] == ["step", "input", "positions"]
    assert lines[3].split()[:5] == ["1", "M", "M", "5", "6"]
    assert "tokens a forward pass, p_cache 0." in lines[-1]


def test_the_config_may_leave_the_mask_to_the_engine(refuses, tmp_path):
    path = checkpoint(tmp_path, "7B", seed=1)
    core = "the mask's id is 151665, but should be 0..39; --mask-id ID says another"
    refuses(core, "generate", path, *PROMPT, *WEDLM)


def test_a_mask_that_is_no_token_is_refused_with_the_file(refuses, model, tmp_path):
    for mask in (40, -1, "39", True):
        copy = Path(shutil.copytree(model, tmp_path / str(mask)))
        config = json.loads((copy / "config.json").read_text()) | {"mask_token_id": mask}
        (copy / "config.json").write_text(json.dumps(config))
        refuses("bad token id", "generate", copy, *PROMPT)


def test_models_that_were_not_trained_for_it(refuses, lockstep):
    refuses("this is qwen3, which was not trained for it; --mask-id ID tries it all the same",
            "generate", DEMO, *PROMPT, *WEDLM)  # fmt: skip
    said = lockstep("generate", DEMO, *PROMPT, *WEDLM, "--mask-id", 0, "--max-tokens", 2)
    assert said.code == 0


def test_a_gguf_file_of_it_names_its_mask(lockstep, refuses, tmp_path):
    """It says Qwen3, as what its layers are."""
    path = tmp_path / "m.gguf"
    short = (*WEDLM, "--max-tokens", 3, "--json", "-")
    path.write_bytes(gguf_bytes.model({"tokenizer.ggml.mask_token_id": (gguf_bytes.U32, 3)}))
    said = lockstep("generate", path, "--tokens", "1,2", *short)
    assert json.loads(said.out)["decoder"]["mask_id"] == 3
    path.write_bytes(gguf_bytes.model())
    refuses("this is qwen3, which was not trained", "generate", path, "--tokens", "1,2", *short)


@pytest.mark.parametrize(
    ("core", "path", "arguments"),
    [
        ("layers of this model see a sliding window", WITNESSES / "llama/mistral_window",
         ("--mask-id", 1)),
        ("layers of this model see a sliding window", MODELS / "sliding_bfloat16",
         ("--mask-id", 1)),
        ("takes masks back in every step, which a cache that drops tokens does not do", None,
         ("--cache", "rotating", "--cache-size", 20)),
        ("takes no penalties of earlier tokens", None,
         ("--presence-penalty", 1, "--semantics", "lockstep")),
        ("repetition_penalty is set, but wedlm has none", None, ("--repetition-penalty", 1.1)),
        ("min_p is set, but wedlm has none", None, ("--min-p", 0.1)),
        ("window=0, but should be from 1 to 1024", None, ("--window", 0)),
        ("'-1' is not a number from 0 on, or none", None, ("--threshold=-1",)),
        ("position_penalty=-1.0, but should be 0 or more", None, ("--position-penalty=-1",)),
        ("temperature=0.0, but should be above 0, which the tempered penalty divides by", None,
         ("--penalty", "tempered")),
        ("the mask's id is 40, but should be 0..39", None, ("--mask-id", 40)),
        ("invalid choice: 'fork'", None, ("--wedlm", "fork")),
    ],
)  # fmt: skip
def test_what_is_refused(refuses, model, core, path, arguments):
    refuses(core, "generate", path or model, *PROMPT, *WEDLM, *arguments)


def test_its_options_are_its_own(refuses, model):
    for option in (("--window", 3), ("--steps",), ("--wedlm", "tencent")):
        refuses(f"{option[0]}: goes with --decoder wedlm", "generate", model, *PROMPT, *option)


def test_the_scripted_model_says_what_it_is_told(capsys):
    assert scripted.main(["--threshold", "none", "--wedlm", "mlx-port"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:9] == ["1", "M", "M", "M", "M", "3", "4", "5", "6"]
    assert "tokens a forward pass" in lines[-1] and MASK == 255


def test_the_scripted_model_shows_every_penalty(capsys):
    """By law: at the temperature 1 the tempered one is first-mask. Cold logits are sure of all."""
    said = []
    for more in ([], ["--penalty", "tempered"], ["--penalty", "tempered", "--temperature", "0.1"]):
        assert scripted.main(more) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]
    assert said[2].splitlines()[1].split()[-8:] == [*"3456", "103", "104", "105", "106"]


@pytest.mark.parametrize(
    ("core", "arguments"),
    [
        ("temperature=0.0, but should be above 0", ["--penalty", "tempered", "--temperature", "0"]),
        ("window=0, but should be from 1 to 1024", ["--window", "0"]),
    ],
)
def test_what_the_scripted_model_is_told_wrong_is_a_line(capsys, core, arguments):
    assert scripted.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("lockstep: error: wedlm: ")
    assert core in said.err and said.err.count("\n") == 1


def test_what_the_scripted_model_s_logits_cannot_be_divided_by_is_a_line(capsys):
    """By law: at the limit all is sure, and nothing overflows, which would be a warning."""
    cold = ["--temperature", "9.9e-308"]
    assert scripted.main(["--penalty", "tempered", *cold]) == 2
    wanted = "9.9e-308, but should be at least 1e-307, which the tempered penalty divides by"
    assert capsys.readouterr() == ("", f"lockstep: error: --temperature: {wanted}\n")
    assert scripted.main(["--penalty", "tempered", "--temperature", str(scripted.COLDEST)]) == 0
    assert scripted.main(cold) == 0  # nothing is divided by it


def diffusion(way="tencent", **changes) -> Wedlm:
    chosen = DiffusionOptions(0, VARIANTS[way], window=4, threshold=0.4, **changes)
    return Wedlm(chosen, SamplingOptions(), steps=False)


def test_a_chat_goes_on_from_its_cache():
    """By law: an answer is the same whether the earlier turns are read again or not."""
    model = fast.load(DEMO, backend="cpu")
    assert held_against_no_cache(*(chat(model, decoder=diffusion()) for _ in range(2)), count=6)[1]


def test_the_engine_stops_at_chatmls_ends_whatever_the_files_say(tmp_path):
    """By hand: files that name no end; the port never looks at any, and one may ignore them."""
    model = fast.load(without_template(tmp_path), backend="cpu")
    ends = frozenset({699, 697})  # <|im_end|>, <|endoftext|>
    for decoder, ignored, stop in (
        (diffusion(), False, ends), (diffusion(), True, set()), (None, False, set()),
        (diffusion("mlx-port"), False, set()),
    ):  # fmt: skip
        made = Generation(model, SamplingOptions(), seeded(0), ignore_eos=ignored, decoder=decoder)
        assert made.stop == stop


def test_the_rate_counts_every_token():
    """By hand: tokens of one step come together; all of them took the time since the prompt."""
    clock = Clock(now=iter([0.0, 1.0, 3.0, 3.0, 5.0]).__next__)
    clock.prompt_is_read()
    for _ in range(3):
        clock.token()
    found = clock.timings(8, from_prompt=0)
    assert (found["decode_s"], found["decode_tokens_per_second"]) == (4.0, 0.75)
    assert found["first_token_s"] == 3.0 and diffusion().from_prompt == 0
    assert clock.timings(8)["decode_tokens_per_second"] == 1.0


def test_the_counts_of_a_text_that_was_stopped():
    """What is counted is what was handed out; the steps are those that were run."""
    model, decoder = fast.load(DEMO, backend="cpu"), diffusion()
    generation = Generation(model, SamplingOptions(), seeded(0), ignore_eos=True, decoder=decoder)
    whole = generation.run([5, 6, 7], 8, lambda piece: None)
    again = generation.run([5, 6, 7], 8, lambda piece: None)
    assert whole["decoder"] == again["decoder"] and whole["decoder"]["p_cache"] == pytest.approx(
        8 / whole["decoder"]["fed"]
    )
    assert len(whole["tokens"]) == 8
