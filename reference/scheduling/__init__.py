"""What a model reads next, what is drawn next, and when a text ends: whole numbers, no arithmetic.

So it is shared. What rounds (samplers, entropies, the choice between draft and model) is written
twice, in `reference/decoding` and `fast/decoding`, and handed in.
"""
