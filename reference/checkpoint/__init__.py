"""From the bytes of a checkpoint to named tensors. Start at `checkpoint.open_checkpoint`."""
