"""The building blocks of strategies: functions of arrays, without store, disk or clock."""
