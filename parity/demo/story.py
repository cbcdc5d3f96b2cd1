"""What `lockstep demo` tells: one model, three backends, one bug."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.parity.check import check
from lockstep.parity.demo.faults import lost_theta
from lockstep.parity.generating import Generation
from lockstep.parity.report import report
from lockstep.parity.result import Result
from lockstep.parity.tracing import trace_run
from lockstep.parity.uniforms import seeded
from lockstep.reference.model import load as load_reference
from lockstep.reference.tokenizer.sampling_options import SamplingOptions
from lockstep.reference.tokenizer.tokenizer import load_tokenizer

HERE = Path(__file__).parent
CHECKPOINT = HERE / "checkpoint"
SHOWN = ("What is 2+2?", "What day comes after Monday?", "What is the capital of France?")
LONGEST = 32  # tokens of an answer
KEPT = ("reference", "broken")  # runs whose traces are kept, if they are wanted
Say = Callable[[str], None]


def tell(say: Say, out: str | None) -> dict[str, Any]:
    """Run the demo; return what was seen and whether it is as it should be."""
    say("1. One checkpoint, three backends: a 4-bit Qwen3 of a million parameters.\n")
    from lockstep.fast.model import load as load_fast

    models = {
        "reference": load_reference(CHECKPOINT),
        "mlx": load_fast(CHECKPOINT, backend="mlx"),
        "cpu": load_fast(CHECKPOINT, backend="cpu"),
    }
    tokens = prompts(CHECKPOINT)
    texts = {name: answers(model, tokens) for name, model in models.items()}
    say(conversation(texts))

    say("\n2. Each fast backend against the reference, layer by layer.\n")
    question = next(iter(tokens))
    right = {name: check(models["reference"], models[name], [tokens[question]], decode=4)
             for name in ("mlx", "cpu")}  # fmt: skip
    say("\n".join(report(result).split("\n\n")[0] for result in right.values()))

    say("\n3. A bug is planted in the cpu backend: it loses rope_theta and takes a default.\n")
    broken = load_fast(CHECKPOINT, backend="cpu")
    broken.ops = lost_theta(broken.ops)
    said = answers(broken, tokens)
    say(conversation({"cpu, broken": said}))
    found = check(models["reference"], broken, [tokens[question]])
    say("\nWhat lockstep check says of it:\n\n" + report(found))
    story = verdict(texts, right, said, found)
    if out is not None:
        keep(Path(out), models["reference"], broken, tokens[question], story, say)
    return story


def prompts(checkpoint: Path) -> dict[str, list[int]]:
    """Return the demo's questions and the tokens of each in the chat template."""
    tokenizer = load_tokenizer(checkpoint)
    return {
        question: tokenizer.encode_chat([{"role": "user", "content": question}])
        for question in SHOWN
    }


def answers(model: Any, tokens: dict[str, list[int]]) -> dict[str, str]:
    """Let a model answer every question greedily."""
    generation = Generation(model, SamplingOptions(), seeded(0), ignore_eos=False)
    return {
        question: generation.run(ids, LONGEST, lambda text: None)["text"]
        for question, ids in tokens.items()
    }


def conversation(texts: dict[str, dict[str, str]]) -> str:
    """Lay out questions, and below each what every backend answers."""
    width = max(map(len, texts))
    lines = []
    for question in next(iter(texts.values())):
        lines.append(f"   {question}")
        lines += [f"      {name:<{width}}  {said[question]}" for name, said in texts.items()]
    return "\n".join(lines)


def verdict(
    texts: dict[str, dict[str, str]],
    right: dict[str, Result],
    said: dict[str, str],
    found: Result,
) -> dict[str, Any]:
    """Say what the demo showed, and whether the bug was found where it was planted."""
    first = found.first_divergence
    expected = "model.layers.0.self_attn.q_rope"
    same = all(answer == texts["reference"] for answer in texts.values())
    heard = said != texts["reference"]
    parity = all(result.verdict == "parity" for result in right.values())
    return {
        "answers": texts,
        "broken_answers": said,
        "checks": {name: result.verdict for name, result in right.items()},
        "broken_check": found.to_json(),
        "as_it_should": same and parity and heard and first is not None and first.name == expected,
    }


def keep(
    folder: Path, reference: Any, broken: Any, tokens: list[int], story: dict[str, Any], say: Say
) -> None:
    """Write both traces and the result, and say how to compare them by hand."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in zip(KEPT, (reference, broken), strict=True):
        trace_run(model, tokens, folder / f"{name}.safetensors", globs=None, decode=0)
    (folder / "result.json").write_text(json.dumps(story, indent=2) + "\n", encoding="utf-8")
    paths = " ".join(str(folder / f"{name}.safetensors") for name in KEPT)
    say(f"\nKept in {folder}. Compare them yourself:\n  lockstep diff {paths} --model {CHECKPOINT}")
