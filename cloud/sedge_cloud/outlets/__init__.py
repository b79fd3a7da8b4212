"""The outputs of the facts: page, metrics, notices, journal, Home Assistant, terminal."""
