"""How fast each backend and each peer is on one checkpoint, measured in one run, in turn."""
