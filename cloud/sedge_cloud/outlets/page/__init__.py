"""The status page: its server, and the page as HTML from the facts alone."""
