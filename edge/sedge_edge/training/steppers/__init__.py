"""The steps of trainings, for any backend that computes gradients. Each method has its own file."""
