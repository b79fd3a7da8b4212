"""``sedge-export``: its options, and its commands without and with torch."""
