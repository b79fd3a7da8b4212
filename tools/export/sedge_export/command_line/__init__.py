"""``sedge-export``: its options, what it does without torch, and what with it."""
