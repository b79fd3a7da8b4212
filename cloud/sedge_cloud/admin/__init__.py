"""Administers a fleet: runs, enrolment, a new fleet's files and diagnosis."""
