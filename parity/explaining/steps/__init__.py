"""Dumps of several passes and of several rows, read as whole texts."""
