"""Layers over time, as one operator of a traced graph that a runtime keeps as a loop.

The import below enters the steps.
"""

from sedge_export.recurrent import cells as cells
