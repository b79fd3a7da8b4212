"""Lets several processes serve one fleet: decides which process has which shards, and which one leads."""
