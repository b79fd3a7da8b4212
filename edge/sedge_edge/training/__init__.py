"""One order's work: the start vector, training and evaluation, the coded update."""
