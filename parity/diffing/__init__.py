"""`diff`'s three ways: the two alone, with the model's reference, with its torch modules."""
