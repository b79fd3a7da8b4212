"""From traced graphs to the files of each runtime, which ``target`` lists.

target      the runtimes, a row each
programs    which programs there are: their inputs, outputs and files
"""
