"""Names that try to become something else in a report, and a dump that holds them."""

import json

import numpy as np
from safetensors.numpy import save_file

SCRIPT = "<script>window.hacked=1</script>"
NAMES = (
    SCRIPT,
    "\"><img src=x onerror=window.hacked=1><a href='javascript:window.hacked=1'>",
    "</style></title></code></table><svg onload=window.hacked=1>",
    "model.layers.0.<b onclick=window.hacked=1>x",
    "a\n::error title=owned::owned",
    "::error title=owned::owned",
    "b%0A::error::owned",
    "c\r\n##[error]owned",
    "##[group]owned",
    "| cell | `code` | **bold** |",
    "``` fence",
    "[link](https://example.com) https://example.com www.example.com",
    "@someone and #1 and GH-1 and a@example.com",
    "<details open><summary>owned</summary>",
    "\u202eevil\u202c\u2066x\u2069\u200b",
    "\x1b[31mred\x07\x00\x7f",
    "\ufffe\uffff\ud7ff\ue000",
    "]]><!-- --><?xml?>&amp;&#64;user",
    "e" * 1000,
    "",
)


def write_dumps(folder):
    """Write two dumps under hostile names that differ, and return their paths."""
    rng = np.random.default_rng(0)
    named = filter(None, NAMES)  # the reader of dumps refuses an empty name
    tensors = {name: rng.standard_normal((1, 3, 4)).astype(np.float32) for name in named}
    about = {"format": "lockstep-trace", "version": "1", "tokens": json.dumps([1, 2, 3])}
    left, right = folder / "left.safetensors", folder / "<i>right.safetensors"
    save_file(tensors, left, about)
    changed = {name: value * 1.5 for name, value in tensors.items()}
    # One name on one side alone, and one whose rows are no tokens, for those lists.
    del changed[NAMES[1]]
    save_file(changed, right, about)
    return left, right


def diagnosis():
    """Return a document of `explain` whose every text is hostile."""
    text = "\n".join(NAMES[:-2])
    fault = {"id": text, "variant": text, "taps": [*NAMES], "layers": [0, -1, 10**18],
             "confidence": 0.5, "residual_before": "inf", "residual_after": "nan", "noise": 0,
             "runner_up": {"id": text, "residual": None}, "also_fits": [text], "fix": text,
             "votes": {"fault": 9, "right": 1}, "wrong": text, "right": text,
             "put_into": [*NAMES]}  # fmt: skip
    return {
        "verdict": "faults", "command": "explain", "model": text, "dump": text, "dtype": text,
        "faults": [fault], "conventions": [*NAMES, text],
        "unexplained": [{"tap": name, "own_error": 1, "noise": 0, "shape": text} for name in NAMES],
        "config": [{"key": text, "kind": text, "effect": text, "fault": text, "fix": text}],
        "weights": [text, {"text": text, "fix": text, "fault": None}],
        "coverage": {"compared": 3, "unmatched": [*NAMES], "not_judged": [*NAMES]},
        "counterfactual": [{"fixed": [text], "logits_error": "nan"}],
        "taps": [{"name": name, "shape": [1, 2], "status": "diverged", "op": text, "place": text,
                  "ratio": "inf", "own_error": 1, "noise": 0, "rms_rel": 1} for name in NAMES],
    }  # fmt: skip
