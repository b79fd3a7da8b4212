"""What rounds hand to training and get back, and what both read and keep."""
