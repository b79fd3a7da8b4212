"""Mutants of the product, and the tests that notice them."""
