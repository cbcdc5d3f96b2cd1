"""Single operations of a port against the reference, on shapes and values that hurt.

`families` draw the examples, `backends` run them, `compare` judges them with the calibrated noise,
`examine` lets Hypothesis search and shrink, `table` prints. Hypothesis is an extra.
"""
