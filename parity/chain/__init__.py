"""The whole way of a port: text to ids before the model, logits to choices behind it."""
