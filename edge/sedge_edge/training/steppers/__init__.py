"""Steppers, which make the training steps with any backend that computes gradients.

single.py trains one model and apfl.py two; stepper.py chooses between them. model.py computes a model's
gradient, to which prox.py and scaffold.py add terms. average.py computes the mean of the last models.
"""
