"""What `check`, `diff` and `explain` found, in the formats that people share: a file each."""
