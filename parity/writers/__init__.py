"""Writers of the dump format, one a language, to be copied into a port."""
