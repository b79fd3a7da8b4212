"""Narrower forms of a model: which channels belong together, and the model without some of them."""
