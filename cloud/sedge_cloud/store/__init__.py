"""Everything that the coordinator keeps on disk."""
