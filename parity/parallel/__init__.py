"""Ranks of a model that is dealt out, held against what each should have, and their bugs named."""
