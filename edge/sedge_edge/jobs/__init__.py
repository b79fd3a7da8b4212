"""The interface between rounds and training, and the data that both read and keep."""
