"""What goes wrong between a text and its ids; what fits first is named first."""

from lockstep.parity.faults.tokenizer import chats, ends, files, ids, merges, texts

MISTAKES = (
    *ids.MISTAKES, *texts.MISTAKES, *chats.MISTAKES, *files.MISTAKES, *merges.MISTAKES,
    *ends.MISTAKES,
)  # fmt: skip
