"""From logits to text: one way of decoding a file."""
