"""Code that touches the machine, for both sides: link, loop, disk, configuration, terminal."""
