"""Compiles traced graphs for each runtime.

lower    the stage: compiles all programs for all requested runtimes
target   the runtimes, one row each
"""
