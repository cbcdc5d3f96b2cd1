"""What one of several ranks has of a model: its share of every weight, and no other bytes."""
