"""The subject of an export: the user's model on one input and one flat vector, its objective, its rows."""
