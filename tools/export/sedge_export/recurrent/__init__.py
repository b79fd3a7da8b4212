"""Layers over time, as one operator of a traced graph that a runtime keeps as a loop.

The import below registers the steps.
"""

from sedge_export.recurrent import cells as cells
