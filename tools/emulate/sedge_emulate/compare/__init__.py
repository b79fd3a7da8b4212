"""``sedge-emulate compare``: compares runs that differ only in their seeds.

It reports means, spreads and paired tests.

moments       when a device's model is measured, and on which devices
comparison    collects the runs in several folders and compares them
targets       the cost of reaching a target value of the metric
grids         a comparison as tables for the terminal, LaTeX and Markdown
page          a comparison as one HTML file, with curves over all seeds
"""
