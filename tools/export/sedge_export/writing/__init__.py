"""Writes a bundle: its manifest, its folder, and the memory that its programs need."""
