"""Rules that several runtimes share, written with torch's own operators: the table of rules, windows,
pools.
"""
