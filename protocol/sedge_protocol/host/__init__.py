"""Access to the machine, for both sides: link, loop, disk, configuration, terminal."""
