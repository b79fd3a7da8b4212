"""Layers over time, as one operator of a traced graph that a runtime keeps as a loop."""
