"""Makes narrower forms of a model: finds which channels belong together, and leaves some of them out."""
