"""What a run is made of: its state, vectors, client models and updates, decoded from the store."""
