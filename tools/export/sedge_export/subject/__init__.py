"""The subject of an export: the model as a function of one input and one flat vector, and its data."""
