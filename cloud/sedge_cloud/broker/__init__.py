"""The fleet's broker: accounts and certificates, and a broker as a child process.

accounts      Mosquitto's password file
access        the access list: who may write and read which topics
certificates  the fleet's own certificate authority
files         rewrites one of the broker's files
child         a broker that this process starts and stops
ports         finds a free port, and waits until a server accepts connections on it
exit_guard    ends another process together with this one
"""
