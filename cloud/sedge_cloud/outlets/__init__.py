"""Outputs of the facts: status page, metrics, notices, journal, Home Assistant and terminal."""
