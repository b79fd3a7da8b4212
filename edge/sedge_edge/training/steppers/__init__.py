"""The steps of trainings, for any backend that differentiates: one method per file."""
