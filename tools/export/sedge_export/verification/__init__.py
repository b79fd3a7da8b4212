"""Compares programs with eager torch in float64. A bundle is written only if they agree."""
