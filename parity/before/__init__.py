"""What is found before any tensor of a run is compared. See docs/parity/before.md."""
