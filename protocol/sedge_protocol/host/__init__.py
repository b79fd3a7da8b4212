"""Both sides' access to the machine: link, loop, disk, configuration, terminal."""
