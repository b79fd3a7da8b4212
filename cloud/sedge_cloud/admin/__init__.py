"""The operator's tasks: runs, enrolment, a fleet's first files, diagnosis."""
