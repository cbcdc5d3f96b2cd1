"""What the making of a text took, in ratios for who compares decoders."""

from lockstep.reference.scheduling.diffusion_window import Step


def ratio(part: int, whole: int) -> float | None:
    """Return a part of a whole, None where there is nothing."""
    return part / whole if whole else None


class Counts:
    """What a text's making by diffusion took: a listener of its steps."""

    def __init__(self) -> None:
        self.steps = self.forwards = self.fed = self.made = 0

    def __call__(self, step: Step) -> None:
        self.steps += 1
        self.forwards += 1 + bool(step.extra)
        self.fed += len(step.tokens) + step.extra
        self.made += len(step.committed)

    def document(self, kept: int) -> dict[str, float | int | None]:
        """Return the counts, and both ratios over the `kept` tokens of the text.

        `tokens_per_forward` is over passes. `p_cache` is over the tokens that went through the
        model after the prompt, masks and repetitions too. None where nothing was made.
        """
        return {
            "steps": self.steps,
            "forwards": self.forwards,
            "fed": self.fed,
            "tokens_per_forward": ratio(kept, self.forwards),
            "p_cache": ratio(kept, self.fed),
        }
