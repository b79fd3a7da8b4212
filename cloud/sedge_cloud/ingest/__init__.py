"""The ingest: sessions of devices, their uploads and downloads, and what bounds them."""
