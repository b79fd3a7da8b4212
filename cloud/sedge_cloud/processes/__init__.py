"""Several processes that serve one fleet: who has which shards, and who leads."""
