"""Makes the story's adapter: mlx-lm's own LoRA teaches the demo's Qwen3 to talk like a pirate.

    python docs/parity/five_bugs/make_adapter.py DIR

It is the script of the demo's adapter with another base. Needs the extra `demo-training`.
"""

import sys
from pathlib import Path

from lockstep.parity.demo import make_adapter as demo

KEYS = ["self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj"]
RATE, STEPS, SCALE = 3e-4, 150, 16.0


def main(out: Path) -> None:
    demo.BASE = demo.BASE.with_name("checkpoint")
    demo.SETTINGS["lora_parameters"] |= {"keys": KEYS, "scale": SCALE}
    demo.SETTINGS |= {"iters": STEPS, "learning_rate": RATE}
    demo.SETTINGS["lr_schedule"]["arguments"] = [RATE, STEPS]
    demo.stories.examples = lambda: ()  # this model was taught none
    demo.make_adapter(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
