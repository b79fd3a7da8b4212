"""Rules that several runtimes share, in torch's own operators: the table of rules, windows, pools."""
