"""Traces each recurrent layer as a single operator, which a runtime runs as a loop.

The import below registers the steps.
"""

from sedge_export.recurrent import cells as cells
