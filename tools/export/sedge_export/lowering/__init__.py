"""Compiles traced graphs for each runtime.

lower    the stage, ``lower``
target   the runtimes, one row each
"""
