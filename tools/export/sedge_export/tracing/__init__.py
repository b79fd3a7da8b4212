"""Traces a pure function to one ATen graph, without decomposing operators in ``lowering``'s table."""
