"""One key/value cache a file."""
