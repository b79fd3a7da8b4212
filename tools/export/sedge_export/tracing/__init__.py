"""Traces a pure function to one ATen graph, keeping operators whole that ``lowering`` has in a table."""
