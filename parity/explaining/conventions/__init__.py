"""What is right and yet differs: a port's precision, its rounding, its points of reading."""
