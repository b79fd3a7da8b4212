"""From traced graphs to the files of each runtime: ``lower``, for the runtimes that ``target`` lists.

lower       the stage
target      the runtimes, a row each
"""
