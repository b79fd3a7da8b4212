"""Where the facts go: page, metrics, notices, journal, Home Assistant, terminal."""
