"""exl3ctl and the bench tools: clients of the daemon, never part of it."""
