"""Files as mlx-lm writes them, right ones and others, made here tensor by tensor. By hand."""

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.prompt_cache.mlx_lm import load_mlx_lm_cache
from lockstep.parity.prompt_cache.saving import write
from lockstep.reference.checkpoint.errors import InputError
from tests.parity.conftest import DEMO
from tests.reference.caches.test_models_with_caches import drawn

COUNT, SIZE, KEEP = 8, 6, 2
CLASSES = {"KVCache": [COUNT], "RotatingKVCache": [COUNT, KEEP, SIZE, 4],
           "QuantizedKVCache": [COUNT, 64, 8]}  # fmt: skip
OURS = {"KVCache": ("growing", {}), "QuantizedKVCache": ("affine8", {}),
        "RotatingKVCache": ("rotating-mlx-lm", {"size": SIZE, "keep": KEEP})}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return reference.load(DEMO)


def layers_of(model, name):
    """Return what our own cache of the kind holds after 8 tokens, and its tokens."""
    kind, told = OURS[name]
    tokens, cache = drawn(model)[:, :COUNT], model.make_cache(kind, **told)
    for place in range(COUNT):
        model.forward(tokens[:, place : place + 1], cache=cache)
    return cache, tokens[0].tolist()


def right(model, name):
    """Return the tensors and the header of a file of mlx-lm, its cache and its tokens."""
    cache, tokens = layers_of(model, name)
    tensors, header = {}, {}
    for layer, pair in enumerate(cache.state()):
        header[f"1.{layer}"] = name
        for side, arrays in enumerate(pair):
            names = [f"{layer}.{side}"] if len(arrays) == 1 else [
                f"{layer}.{side}.{part}" for part in range(3)]  # fmt: skip
            tensors |= dict(zip(names, arrays, strict=True))
        for part, number in enumerate(CLASSES[name], 2):
            tensors[f"{layer}.{part}"] = np.array(number, np.int32)
    return tensors, header, cache, tokens


@pytest.mark.parametrize("name", CLASSES)
def test_a_right_file_is_gone_on_with(model, name, tmp_path):
    """By law: the logits of the cache that it was made of. The ring is at slot 4: 0 1 6 7 4 5."""
    tensors, header, cache, tokens = right(model, name)
    write(tmp_path / "cache.safetensors", tensors, header)
    loaded = load_mlx_lm_cache(tmp_path / "cache.safetensors", model, tokens).cache
    for ring in loaded.positions.rings.values():
        assert ring.slots.tolist() == [0, 1, 6, 7, 4, 5]
    found, wanted = (model.forward([[9]], cache=one) for one in (loaded, cache))
    assert (found == wanted).all()


def short(array):
    return array[:, :, :3]


LIES = [
    ("RotatingKVCache", "0.0", None, "tensor '0.0' should be there with four axes"),
    ("RotatingKVCache", "3.1", None, "tensor '3.1' should be there with four axes"),
    ("RotatingKVCache", "0.0", short, "layer 0 has 3 slots of keys, but 6 of values"),
    ("RotatingKVCache", "2.5", lambda a: a + 1, "layer 2 does not hold what layer 0 holds"),
    ("RotatingKVCache", "2.4", lambda a: a + 1, "layer 2 does not hold what layer 0 holds"),
    ("RotatingKVCache", "0.5", lambda a: a + 3, "says keep=2, max_size=6, index=7 of 6 slots"),
    ("RotatingKVCache", "0.5", lambda a: 0 * a, "says keep=2, max_size=6, index=0 of 6 slots"),
    ("KVCache", "0.0", short, "tensor '0.0' holds .*3.* but this model's cache .*8"),
    ("KVCache", "3.1", short, "tensor '3.1' holds .*3.* but this model's cache .*8"),
    ("KVCache", "1.2", lambda a: a - 1, "layer 1 holds 7 tokens, but 8 are said"),
    ("KVCache", "1.2", None, "tensor '1.2' should be a whole number"),
    ("QuantizedKVCache", "0.0.2", short, "tensor '0.0' holds .*3.* but this model's cache .*8"),
    ("QuantizedKVCache", "0.1.1", None, "tensor '0.1.1' should be there with four axes"),
    ("QuantizedKVCache", "3.4", lambda a: a // 2, "layer 3 does not hold what layer 0 holds"),
]


@pytest.mark.parametrize(("name", "tensor", "spoil", "what"), LIES)
def test_a_file_that_lies_is_refused_in_one_line(model, name, tensor, spoil, what, tmp_path):
    tensors, header, _, tokens = right(model, name)
    whole = tensors.pop(tensor)
    if spoil is not None:
        tensors[tensor] = spoil(whole)
    refused(model, tensors, header, tokens, what, tmp_path)


def test_a_ring_that_lacks_what_the_next_token_sees_is_refused(model, tmp_path):
    """By hand: of 8 tokens a ring of 6 holds 2 and 4, but every layer of this file has 4 slots."""
    tensors, header, _, tokens = right(model, "RotatingKVCache")
    for name, array in tensors.items():
        tensors[name] = array[:, :, :4] if array.ndim == 4 else array
    what = "its slots lack tokens that the next one sees"
    refused(model, tensors, header, tokens, what, tmp_path)


def refused(model, tensors, header, tokens, what, folder):
    path = folder / "cache.safetensors"
    write(path, tensors, header)
    with pytest.raises(InputError, match=what) as caught:
        load_mlx_lm_cache(path, model, tokens)
    assert "\n" not in str(caught.value)
