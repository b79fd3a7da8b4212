"""Traces a pure function to one ATen graph, and keeps operators whole that ``lowering`` has in a table."""
