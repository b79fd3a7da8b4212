"""From a pure function to one ATen graph, which leaves whole what ``lowering`` has a table for."""
