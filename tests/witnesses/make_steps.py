"""Write `steps/`: what transformers dumps of a prompt and its steps, right and with bugs of caches.

    python -m tests.witnesses.make_steps

The checkpoint is `llama/mistral_window`, whose window of 9 tokens the prompt of 15 is beyond.
"""

import re
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.proof import decoding, ports
from tests.witnesses import build

HERE = Path(__file__).parent
FOLDER, TARGET = HERE / "llama/mistral_window", HERE / "steps"
PROMPT, STEPS = 15, 4
TOKENS = np.random.default_rng(3).integers(0, 64, PROMPT + STEPS).tolist()
KEPT = re.compile(
    r"(step\.\d/)?(model\.(embed_tokens|norm|layers\.\d(\.self_attn\.o_proj)?)|lm_head)"
)
# file: the bug, None in a right port
PORTS = {
    "right": None,
    "positions_at_0": "rope-pos-frozen-on-decode (0)",
    "never_stored": "kv-never-stored",
    "ring_as_flat": "kv-ring-sliced-as-flat (mod)",
    "ring_too_small": "kv-ring-size-off-by-one (less)",
    "turned_twice": "rope-on-cached-keys-again (once)",
    "heads_of_queries": "kv-head-count-in-cache (zeros)",
    "eight_bits": "kv-int8-noise (head)",
}


def make(name: str, bug: str | None) -> None:
    """Run one port and keep some of its modules."""
    plant = None if bug is None else decoding.STEP_BUGS[bug]
    found = decoding.run(ports.load(FOLDER), TOKENS, [PROMPT] + [1] * STEPS, plant)
    kept = {
        one: np.ascontiguousarray(found.read(one)) for one in found.shapes if KEPT.fullmatch(one)
    }
    save_file(kept, TARGET / f"{name}.safetensors", dict(found.about))


if __name__ == "__main__":
    build.settle()
    TARGET.mkdir(exist_ok=True)
    for name, bug in PORTS.items():
        make(name, bug)
