"""The parts of a bundle besides its programs."""
