"""Recurrent layers, as one operator of a traced graph that a runtime runs as a loop.

The import below registers the steps.
"""

from sedge_export.recurrent import cells as cells
