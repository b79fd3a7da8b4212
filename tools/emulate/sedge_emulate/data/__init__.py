"""What devices hold: the data sets, how they are split, and each device's share."""
