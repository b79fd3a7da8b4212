"""Steppers, which make the training steps with any backend that computes gradients.

One method per file.
"""
