"""The processes that train for the devices.

pool        assigns waiting jobs to processes
local       the processes of this host
setup       the setup of a process, and its trainer
worker      a process: it does the jobs of a group together
lockstep    the trainings of a group side by side, each step answered at once
job_disk    one job's access to the host's disk
"""
