"""What strategies are made of: functions of arrays, without store, disk or clock."""
