"""Programs beside eager torch in float64: what it says decides whether a bundle is written."""
