"""Which caches a draft goes with: those with which it changes no token. By law, by hand."""

import pytest

from lockstep import fast, reference
from lockstep.parity.decoders.request import Request
from lockstep.parity.decoders.speculative import LOOKUP, Speculative
from lockstep.parity.generating.generation import Generation
from lockstep.parity.generating.uniforms import seeded
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding import speculative
from lockstep.reference.scheduling.prompt_lookup import LookupDraft
from lockstep.reference.scheduling.sampling_options import SamplingOptions
from lockstep.reference.stores.kinds import AFFINE_BITS, ROTATING, TURBO_BITS
from tests.parity.conftest import DEMO
from tests.sampled import sampled

TEXT = "Tell me about a king. What is 12 + 7? Tell me about a king."
SPED = ["generate", str(DEMO), "--decoder", "speculative", "--draft", "lookup"]


def lookup():
    return Speculative(LOOKUP, draft_tokens=4, ngram=3)


@sampled(1, "affine8-fast")
@pytest.mark.parametrize("make", [reference.load, fast.load], ids=["reference", "fast"])
@pytest.mark.parametrize("kind", ["int8", *AFFINE_BITS])
def test_codes_that_are_made_at_once_leave_the_text_the_plain_one(make, kind):
    """By law: a token is coded as it comes, so it is read alike alone and behind a draft."""
    model, found = make(DEMO), {}
    for decoder in (None, lookup()):
        made = Generation(
            model, SamplingOptions(), seeded(0), ignore_eos=True, cache=kind, decoder=decoder
        )
        tokens = made.tokenizer.encode_chat([{"role": "user", "content": TEXT}])
        cache = made.made_cache(len(tokens) + 30)
        found[decoder is None] = made.run(tokens, 30, lambda text: None, cache=cache)
        assert all(len(store.parts) > 1 for store in (*cache.keys, *cache.values))  # codes
    assert found[True]["tokens"] == found[False]["tokens"]
    assert found[False]["decoder"]["accepted"] > 3


@pytest.mark.parametrize("kind", [*TURBO_BITS, *ROTATING])
def test_other_caches_are_refused_wherever_they_come_from(lockstep, tmp_path, kind):
    """By hand: by the option before a model loads, from a file, and from Python."""
    told = {"size": 8} if kind in ROTATING else {"recent": 2}
    option = ["--cache-size", "8"] if kind in ROTATING else ["--recent", "2"]
    why = "drops what is needed" if kind in ROTATING else "codes what is not new"
    path, ask = str(tmp_path / "cache.safetensors"), ["--tokens", "5,6,7", "--max-tokens", "3"]
    first = ["generate", str(DEMO), *ask, "--cache", kind, *option, "--save-cache", path]
    assert lockstep(*first).code == 0
    for more in (["--cache", kind, *option], ["--load-cache", path]):
        said = lockstep(*SPED, *ask, *more)
        assert said.code == 2 and said.out == ""
        assert f"error: speculative decoding: {kind} {why}" in said.err
    model = reference.load(DEMO)
    cache = model.make_cache(kind, **told)
    request = Request(model, [5, 6, 7], 3, (), SamplingOptions(), seeded(0), cache)
    with pytest.raises(InputError, match=f"{kind} {why}"):
        next(lookup().tokens(request))
    draft = LookupDraft(vocabulary=model.config.vocab_size, longest=3)
    made = speculative.generate(
        model, [5, 6, 7], draft=draft, draft_tokens=2, max_tokens=3, stop=(),
        sampling=SamplingOptions(), uniforms=seeded(0), cache=model.make_cache(kind, **told),
    )  # fmt: skip
    with pytest.raises(InputError, match=f"{kind} {why}"):
        next(made)
