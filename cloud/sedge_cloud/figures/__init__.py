"""How numbers look: words, plots and page templates, for the page and the reports."""
