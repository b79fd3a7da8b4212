"""What several runtimes compute alike, in torch's own operators: the table of rules, windows, pools."""
