"""Tensor parallelism written plainly: one process, and a list with what each rank would have."""
