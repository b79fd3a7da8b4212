"""Compares programs with eager torch in float64: a bundle is written only if they agree."""
