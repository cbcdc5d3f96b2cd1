"""A tiny forward pass that dumps its taps, in each language that has a writer."""
