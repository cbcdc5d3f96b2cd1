"""Dumps of some tokens: read as these tokens alone, and as a text whose others the oracle made."""
