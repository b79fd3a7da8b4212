"""The report of an emulation: a table in the terminal, and one HTML page made from templates."""
