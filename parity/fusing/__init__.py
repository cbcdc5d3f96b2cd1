"""An adapter written into the weights that it belongs to."""
