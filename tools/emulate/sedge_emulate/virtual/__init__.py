"""A fleet in virtual time: devices and coordinator on one clock, over a broker in memory.

clock          coming events, and their times
plan           the faults of each device, from a seed
link           the broker in memory: loss, delays, cuts
device         the agent core with a disk and a link; it runs and fails as the plan says
disk           one folder for the disks of all devices
result_cache   finished jobs, from which a killed run resumes
fleet          all of them and the coordinator, for one run
"""
