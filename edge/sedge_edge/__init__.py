"""The agent of a Sedge device. Importing it loads no machine learning library."""

VERSION = "0.1.0"
