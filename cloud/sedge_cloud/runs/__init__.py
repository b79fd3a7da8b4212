"""The parts of a run: its state, vectors, client models and updates, decoded from the store."""
