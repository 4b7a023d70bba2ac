"""The commands of `exl3ctl`, one file each. A command reads options, calls the work, and prints; the work is elsewhere."""
