"""Some tokens of a prompt in place of all: which, how a tap is cut to them, what judges them."""
