"""How every weight is cut among ranks: one table, by the role of its module.

What follows an input that all ranks have is cut by rows, its outputs (the field calls that
column-parallel, after matrices that are written the other way round): each rank makes the heads or
the inner numbers that are its own. What comes next takes only these, and is cut by columns, its
inputs (row-parallel): each rank makes one part of a sum, and all the parts are added. Tables and
heads are cut by words. Whatever is not in the table every rank has whole: norms, routers, learned
positions, and what is small.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal


@dataclass(frozen=True)
class Rule:
    """What one weight is cut along, and what is dealt out.

    `unit` is what goes to a rank whole: query heads, key/value heads, inner numbers of an MLP, or
    words. `segments` is how many matrices lie above each other in one; each is cut by itself.
    """

    axis: Literal["rows", "columns"]
    unit: Literal["queries", "keys", "inner", "words"]
    segments: int = 1


RULES: tuple[tuple[str, Rule], ...] = (
    (r"self_attn\.q_proj", Rule("rows", "queries")),
    (r"self_attn\.[kv]_proj", Rule("rows", "keys")),
    (r"self_attn\.o_proj", Rule("columns", "queries")),
    (r"attn\.c_attn", Rule("rows", "queries", segments=3)),
    (r"attn\.c_proj", Rule("columns", "queries")),
    (r"(mlp|experts)\.(gate|up)_proj", Rule("rows", "inner")),
    (r"(mlp|experts)\.down_proj", Rule("columns", "inner")),
    (r"mlp\.c_fc", Rule("rows", "inner")),
    (r"mlp\.c_proj", Rule("columns", "inner")),
    (r"embed_tokens|embed_tokens_per_layer|wte|lm_head", Rule("rows", "words")),
)
ENDS = [(re.compile(rf"(.*\.)?({end})"), rule) for end, rule in RULES]
SUMMED = ("experts", "geglu_experts")  # operations that give a part of a sum, as `down_proj` does
# What takes the numbers that these make: its groups of columns say where both may be cut.
NEXT = (("gate_proj", "down_proj"), ("up_proj", "down_proj"), ("c_fc", "c_proj"))


@cache
def rule_of(module: str) -> Rule | None:
    """Return how the weight of a module is cut, by its path; None if every rank has all of it."""
    return next((rule for end, rule in ENDS if end.fullmatch(module)), None)


def taker(module: str) -> str:
    """Return the module that takes the inner numbers that this one makes, or takes them itself."""
    for maker, next_one in NEXT:
        if module.endswith(maker):
            return module.removesuffix(maker) + next_one
    return module
