"""The devices' data: the data sets, their splits, and each device's share."""
