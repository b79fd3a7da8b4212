"""A run's state, vectors, client models and updates, decoded from the store."""
