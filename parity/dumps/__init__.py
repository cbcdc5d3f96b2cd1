"""Dumps and traces: read them, write them, say what is in them and whether they are right."""
