"""Readers of files that the daemon and `exl3ctl` both read: from paths to values of `core`. Nothing here keeps anything."""
