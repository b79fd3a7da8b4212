"""The algorithms, one paper a file, by the names that run files use."""
