"""What is exported: the user's model as one input and one flat vector, its objective, and rows for it."""
