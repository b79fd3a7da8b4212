"""Lets several processes serve one fleet: decides which process has which shards, and who leads."""
