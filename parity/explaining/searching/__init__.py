"""The smallest sets of bugs that explain a piece of a model."""
