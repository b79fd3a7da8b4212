"""The interface between rounds and training, and the data that both of them use."""
