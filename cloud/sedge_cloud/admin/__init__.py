"""What an operator does: runs, enrolment, first configuration, diagnosis."""
