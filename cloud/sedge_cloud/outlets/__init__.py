"""Where the facts are published: status page, metrics, notices, journal, Home Assistant and terminal."""
