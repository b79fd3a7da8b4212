"""A fleet in virtual time: devices and coordinator share one clock and an in-memory broker.

clock          the queue of coming events
plan           draws every device's faults from a seed
link           the in-memory broker: loss, delays, cuts
device         the agent core with a disk and a link, which works and fails according to the plan
disk           one folder for the disks of all devices
result_cache   results of finished jobs, from which an interrupted run resumes
fleet          all devices and the coordinator, for one run
"""
