"""A round from its opening to its closing: who takes part, what is asked, what becomes of it."""
