"""Truth and oracle out of the torch modules of transformers, for what has no reference file.

`folder` says what may be loaded, `loading` loads it, `walk` runs it and shows every module's output
to a visitor, who may put a port's value in its place. `replays` does that in float64 and in each
legal way. See docs/parity/new-architecture.md.
"""
