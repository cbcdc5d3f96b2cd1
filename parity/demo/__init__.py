"""The demo: a tiny trained checkpoint, and the scripts that made it."""
