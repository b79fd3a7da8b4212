"""What a release consists of, made and checked; nothing is uploaded."""
