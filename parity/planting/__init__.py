"""A mistake of the catalogue made on purpose, in a model or around it."""
