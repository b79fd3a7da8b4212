"""Sedge."""
