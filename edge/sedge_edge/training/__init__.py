"""Does the job of one order: the start vector, training and evaluation, and the coded update."""
