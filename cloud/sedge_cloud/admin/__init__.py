"""What an operator does: runs, enrolment, a fleet's first files, diagnosis."""
