"""What both sides need of the machine: link, loop, disk, configuration, terminal."""
