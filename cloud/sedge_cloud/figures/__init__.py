"""Presents numbers: words, plots and page templates, for the page and the reports."""
