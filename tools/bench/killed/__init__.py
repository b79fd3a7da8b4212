"""A server killed in the middle of a round: Sedge, Flower and NVFlare."""
