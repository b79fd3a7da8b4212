"""A round from opening to closing: who takes part, what is ordered, what results."""
