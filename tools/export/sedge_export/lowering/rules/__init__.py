"""Rules shared by several runtimes, written with torch's own operators."""
