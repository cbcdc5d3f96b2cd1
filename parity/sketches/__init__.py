"""Tensors in a few hundred bytes each: how they are made, kept in a file, and compared."""
