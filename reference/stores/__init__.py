"""Where keys and values are kept: slots and positions, and no arithmetic, so it is shared.

What rounds (quantised codes) is written twice, in `reference/caches` and `fast/caches`.
"""
