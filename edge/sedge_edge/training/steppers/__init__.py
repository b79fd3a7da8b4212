"""Steppers, which make the steps of a training with any backend that computes gradients.

One method per file.
"""
