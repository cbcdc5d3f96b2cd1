"""What every port of a language model must obey, held against itself: no oracle is needed.

One law a file. `bench` runs the port and measures, `run` tries the laws, `table` prints.
"""
