"""Runs the model eagerly before compilation, and refuses anything that no program could express."""
