"""The oracle of a model that does not fit: `python -m lockstep.parity.oversized --out DIR`."""
