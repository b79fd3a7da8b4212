"""What a training does at each step, for any backend that differentiates: a method a file."""
