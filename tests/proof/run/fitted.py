"""Which classes stand for another one: numbers that can be fitted to bugs of its family, as a cap
that is missing is a huge one, and a mask of 0 and 1 that is added lowers what is masked by 1; and
those that are the same at some of its places, or another number, as a scale that was rounded.
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
PARTS = {
    "rms-eps-wrong": {"sub-norm-eps-default"},
    "sdpa-scale-folded-half": {"attn-scale-wrong"},
}


def left_out(ids: set[str]) -> set[str]:
    """Return some classes, and those that would stand for them."""
    families = {fault.family for fault in catalogue() if fault.id in ids}
    parts = (PARTS.get(id, set()) for id in ids)
    return ids.union(*parts, *(FITTED.get(family, set()) for family in families))
