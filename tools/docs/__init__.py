"""Builds the documentation site from the repository's pages and the generated reference of settings."""
