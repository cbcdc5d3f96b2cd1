"""A router in steps that can each be got wrong; right, they are those of transformers."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Step = Callable[[torch.Tensor], torch.Tensor]


class Routing:
    """The forward of one router: what it reads, whom it chooses, how much each counts.

    `before` changes what is read, `score` gives a number to every expert, `choose(scores, k)` takes
    experts, `weigh(scores, index)` weighs them, `count` is Gemma's factor of each, `after` changes
    the weights.
    """

    def __init__(self, router: Any):
        self.router = router
        self.before: list[Step] = []
        self.after: list[Step] = []
        self.scale = getattr(router, "scale", None)
        self.root = getattr(router, "scalar_root_size", None)
        self.normalised = getattr(router, "norm_topk_prob", True)
        self.score = self.linear if self.scale is None else self.normed
        self.choose = lambda scores, k: scores.softmax(-1, torch.float32).topk(k).indices
        self.weigh = self.shares

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        for change in self.before:
            x = change(x)
        scores = self.score(x)
        index = self.choose(
            scores, getattr(self.router, "top_k", None) or self.router.config.top_k_experts
        )
        weights = self.weigh(scores, index)
        for change in self.after:
            weights = change(weights)
        if self.scale is None:
            return scores, weights.to(scores.dtype), index
        return (
            scores.softmax(-1, torch.float32),
            weights * self.router.per_expert_scale[index],
            index,
        )

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.router.weight)

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        return self.router.proj(self.router.norm(x) * self.scale * self.root)

    def shares(self, scores: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        weights = scores.softmax(-1, torch.float32).gather(-1, index)
        return weights / weights.sum(-1, keepdim=True) if self.normalised else weights


def routing(router: Any) -> Routing:
    """Return the steps of a router, put in the place of its forward when first asked for."""
    if not isinstance(router.forward, Routing):
        router.forward = Routing(router)
    return router.forward
