"""The ingest: the devices' sessions, uploads and downloads, and the limits on them."""
