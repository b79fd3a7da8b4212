"""What goes into a bundle besides its programs."""
