"""The processes that train for the devices.

pool        which waiting job goes to which process
local       the processes of this host
setup       what a process is given, and its trainer
worker      a process: it does the jobs of a group together
lockstep    the trainings of a group side by side, each step answered at once
job_disk    what one job reads and writes on the host's disk
"""
