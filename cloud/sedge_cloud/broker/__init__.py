"""The fleet's broker: accounts and certificates, and a broker as a child process.

accounts      Mosquitto's password file
access        who may write and read which topics
certificates  an authority of the fleet's own
files         rewrites one of the broker's files
child         a broker that this process starts and ends
ports         a free port, and whether somebody accepts connections there
exit_guard    another process ends with this one
"""
