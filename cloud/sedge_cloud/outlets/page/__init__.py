"""The status page: a server, and HTML pages that are built from the facts alone."""
