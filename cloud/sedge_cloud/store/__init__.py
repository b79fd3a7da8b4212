"""The coordinator's storage: rows in a database, and blobs."""
