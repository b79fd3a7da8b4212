"""Runs the model eagerly before compilation, and refuses what no program could express."""
