"""What caches round: one kind of codes a file, and `make_cache`. Their stores are in `stores`."""
