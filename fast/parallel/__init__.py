"""Tensor parallelism on `mx.distributed`: each rank is a process with its part of the weights."""
