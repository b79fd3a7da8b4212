"""Kills the server in the middle of a round: Sedge, Flower and NVFlare."""
