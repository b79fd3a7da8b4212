"""``sedge-emulate compare``: runs that differ only in their seeds, as means, spreads and paired tests.

moments      when a model is measured, and on which devices
comparison   the runs of some folders, compared
targets      the cost of reaching a value
grids        a comparison as tables of texts: for the terminal, for LaTeX and for Markdown
page         a comparison as one HTML file, with the courses of all seeds
"""
