"""One order's job: the start vector, training and evaluation, the coded update."""
