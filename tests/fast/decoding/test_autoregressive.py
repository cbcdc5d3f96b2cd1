"""Every backend writes what the reference writes, and MLX evaluates once a token. By law."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from lockstep import fast, reference
from lockstep.fast.decoding import autoregressive as fast_decoding
from lockstep.fast.decoding import sampling as fast_sampling
from lockstep.parity.generating.generation import Generation
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding import sampling as reference_sampling
from lockstep.reference.decoding.autoregressive import generate as reference_generate
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.tokenizer.tokenizer import load_tokenizer
from tests.parity.conftest import DEMO, MODELS
from tests.sampled import sampled

BACKENDS = ("mlx", "cpu")
PROMPT = [1, 5, 9, 14]
SAMPLED = SamplingOptions(0.9, top_k=50, top_p=0.95, min_p=0.01)
IMPLICIT = ("item", "tolist", "__array__", "__int__", "__float__", "__bool__", "__index__",
            "__iter__", "__repr__", "__format__", "__dlpack__")  # fmt: skip


def chooser(package, options, seed):
    numbers = seeded(seed)
    return lambda logits: package.sample(logits, options, uniform=next(numbers))


def written(model, options, *, count=24, seed=3, prompt=PROMPT) -> list[int]:
    is_fast = hasattr(model, "backend")
    package = fast_sampling if is_fast else reference_sampling
    generate = fast_decoding.generate if is_fast else reference_generate
    choose = chooser(package, options, seed) if options.temperature else package.greedy
    return list(generate(model, prompt, max_tokens=count, stop=(), choose=choose))


def question() -> list[int]:
    return load_tokenizer(DEMO).encode_chat([{"role": "user", "content": "What is 12 + 7?"}])


@pytest.fixture(scope="module", params=[DEMO, MODELS / "affine_mixed", MODELS / "tied_bfloat16"],
                ids=lambda path: path.name)  # fmt: skip
def folder(request) -> Path:
    return request.param


@sampled(1, "tied_bfloat16-sampled-cpu")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [SamplingOptions(), SAMPLED], ids=["greedy", "sampled"])
def test_tokens_are_those_of_the_reference(folder, backend, options):
    prompt = question() if folder == DEMO else PROMPT
    expected = written(reference.load(folder), options, prompt=prompt)
    assert len(set(expected)) > 2
    assert written(fast.load(folder, backend=backend), options, prompt=prompt) == expected


def test_another_seed_gives_another_text():
    model = fast.load(DEMO, backend="cpu")
    hot = SamplingOptions(1.5)
    texts = [written(model, hot, seed=seed) for seed in range(4)]
    assert len({tuple(text) for text in texts}) == 4
    assert written(model, hot, seed=2) == texts[2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_stop_ids_end_it_and_can_be_ignored(backend):
    model = fast.load(DEMO, backend=backend)
    free = written(model, SamplingOptions(), count=6)
    stop = {free[2]}
    first = free.index(free[2]) + 1
    found = fast_decoding.generate(
        model, PROMPT, max_tokens=6, stop=stop, choose=fast_sampling.greedy
    )
    assert list(found) == free[:first]
    for ignore in (False, True):
        generation = Generation(model, SamplingOptions(), seeded(0), ignore_eos=ignore)
        assert (generation.stop == frozenset()) == ignore


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_prompt_is_refused(backend):
    with pytest.raises(InputError, match="the prompt has no tokens"):
        written(fast.load(DEMO, backend=backend), SamplingOptions(), prompt=[])


class Spoilt:
    """A model whose logits hold something that is no number."""

    def __init__(self, model, value, place):
        self.model, self.value, self.place = model, value, place

    def __getattr__(self, name):
        return getattr(self.model, name)

    def stages(self, *arguments, **options):
        logits = self.model.forward(*arguments, **options)
        size = logits.shape[-1]
        at = mx.arange(size) if self.model.backend.name == "mlx" else np.arange(size)
        where = mx.where if self.model.backend.name == "mlx" else np.where
        yield "logits", where(at == self.place, self.value, logits)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 77])
@pytest.mark.parametrize("options", [SamplingOptions(), SAMPLED], ids=["greedy", "sampled"])
def test_logits_that_are_no_numbers_stop_it(backend, value, place, options):
    model = Spoilt(fast.load(MODELS / "tied_bfloat16", backend=backend), value, place)
    with pytest.raises(InputError, match="but should be finite"):
        written(model, options)


class Evaluations:
    """Counts how often MLX computes: when told to, and when an array is looked at too early."""

    def __init__(self, monkeypatch):
        self.count, self.done = 0, {}
        for name in ("eval", "async_eval"):
            monkeypatch.setattr(mx, name, self.explicit(getattr(mx, name)))
        for name in IMPLICIT:
            monkeypatch.setattr(mx.array, name, self.implicit(getattr(mx.array, name)))
        for name in ("array", "asarray", "ascontiguousarray"):  # these use the buffer protocol
            monkeypatch.setattr(np, name, self.implicit(getattr(np, name)))

    def explicit(self, original):
        def call(*arrays):
            self.note(arrays)
            return original(*arrays)

        return call

    def implicit(self, original):
        def call(array, *rest, **options):
            if isinstance(array, mx.array) and id(array) not in self.done:
                self.note([array])
            return original(array, *rest, **options)

        return call

    def note(self, arrays):
        self.count += 1
        self.done |= {id(array): array for array in arrays}  # kept, so that no id comes again


@pytest.mark.parametrize("options", [SamplingOptions(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["tied_bfloat16", "affine_mixed"])
def test_mlx_evaluates_once_a_token(monkeypatch, name, dtype, options):
    model = fast.load(MODELS / name, backend="mlx", dtype=dtype)
    evaluations = Evaluations(monkeypatch)
    choose = chooser(fast_sampling, options, 0) if options.temperature else fast_sampling.greedy
    tokens = fast_decoding.generate(model, PROMPT, max_tokens=12, stop=(), choose=choose)
    counts = [evaluations.count for _ in tokens]
    ahead = 0 if options.temperature else 1  # a greedy step is begun before the id is looked at
    assert counts == [min(at + ahead, 12) for at in range(1, 13)]


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 9])
def test_mlx_evaluates_once_a_chunk_of_the_prompt(monkeypatch, chunk):
    """By law: the chunks before the last one are computed on their own, so that they can go."""
    model = fast.load(MODELS / "tied_bfloat16", backend="mlx")
    greedy = {"max_tokens": 3, "stop": (), "choose": fast_sampling.greedy}
    whole = list(fast_decoding.generate(model, PROMPT, **greedy))
    with monkeypatch.context() as patch:
        evaluations = Evaluations(patch)
        tokens = fast_decoding.generate(model, PROMPT, **greedy, chunk=chunk)
        counts = [(token, evaluations.count) for token in tokens]
    before = -(-len(PROMPT) // chunk) - 1
    assert counts == [(token, before + min(at + 1, 3)) for at, token in enumerate(whole, 1)]


def test_an_evaluation_by_looking_is_counted(monkeypatch):
    looks = [
        *(lambda x: mx.eval(x), lambda x: x.item(), float, int, bool, lambda x: x.tolist()),
        *(
            lambda x: np.array(x),
            lambda x: np.asarray(x),
            repr,
            lambda x: f"{x}",
            lambda x: list(x[None]) and None,
        ),
    ]
    for look in looks:
        with monkeypatch.context() as patch:
            evaluations = Evaluations(patch)
            x = mx.array(1.0) + 1
            look(x)
            assert evaluations.count >= 1, look
