"""The worker processes, which train for the devices.

pool         assigns waiting jobs to processes
local        processes of this host
cluster      processes of a Ray cluster
setup        the setup of a process, and the trainer that it opens
worker       code of a process: runs the jobs of a group together
lockstep     runs the local trainings of a group side by side, one batch of requests at a time
job_disk     one job's access to the host's disk
preparation  exports the model and checks its trainer before the workers start
processes    starts processes, through loky
"""
