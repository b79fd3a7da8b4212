"""Builds and checks a release; nothing is uploaded."""
