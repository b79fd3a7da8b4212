"""The documentation as one site: pages of this repository as they are, and the reference of every key."""
