"""``sedge-export``: its options, and its commands with and without torch."""
