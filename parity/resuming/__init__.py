"""Runs that go on where they were interrupted: what is done stands in a journal."""
