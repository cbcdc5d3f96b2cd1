"""Experts that stay on the disk: a budget of memory holds those that were visited last."""
