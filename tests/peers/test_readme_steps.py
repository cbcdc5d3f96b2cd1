"""The README's three steps for a port of one's own, as they stand, on a tiny port. By law."""

import re
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from lockstep.parity.cli import main

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests/witnesses/llama/mistral_window"


def test_the_steps_of_the_readme_name_the_bug_of_a_port(tmp_path, monkeypatch, capsys):
    """By law: GELU for SiLU, in every layer."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^   ```py\n(.*?)^   ```$", readme, re.DOTALL | re.MULTILINE)
    model = AutoModelForCausalLM.from_pretrained(MODEL).eval()
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.GELU()
    monkeypatch.chdir(tmp_path)
    exec(re.sub("^   ", "", block, flags=re.MULTILINE), {"model": model})
    (typed,) = re.findall(r"`lockstep (explain MODEL [^`]*)`", readme)
    assert main([str(MODEL) if word == "MODEL" else word for word in typed.split()]) == 1
    assert "act-silu-vs-gelu" in capsys.readouterr().out
