"""Values and pure decisions. Nothing in this room reads a clock, a file or a socket: time arrives as an argument."""
