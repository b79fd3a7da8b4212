"""The documentation as one site: the repository's pages unchanged, and the reference of every key."""
