"""What a port's caches hold after each pass, held against what they should hold."""
