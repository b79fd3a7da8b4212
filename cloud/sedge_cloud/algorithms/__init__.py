"""The building blocks of strategies: functions on arrays that use no store, disk or clock."""
