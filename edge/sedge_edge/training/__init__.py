"""Carries out one order: start vector, training, evaluation and the encoded update."""
