"""Rounds, from opening to closing: which devices take part, what they are told to do, and the result."""
