"""Formats numbers and draws plots and page templates, for the status page and the reports."""
