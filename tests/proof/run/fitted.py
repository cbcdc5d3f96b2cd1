"""Which numbers can be fitted to bugs of each family: a cap that is missing is a huge one, and a
mask of 0 and 1 that is added lowers what is masked by 1.
"""

from lockstep.parity.faults import catalogue

FITTED = {
    "attention": {"attn-scale-wrong"},
    "embedding": {"multiplier-wrong"},
    "logits": {"softcap-wrong"},
    "lora": {"lora-scale-wrong"},
    "mask": {"mask-window-wrong", "mask-sentinel-too-small"},
    "moe": {"moe-top-k-wrong", "multiplier-wrong"},
    "rope": {"rope-stretch-wrong"},
    "rope_scaling": {"rope-stretch-wrong", "rope-theta-default"},
}


def left_out(ids: set[str]) -> set[str]:
    """Return some classes, and those of numbers that would stand for them."""
    families = {fault.family for fault in catalogue() if fault.id in ids}
    return ids.union(*(FITTED.get(family, set()) for family in families))
