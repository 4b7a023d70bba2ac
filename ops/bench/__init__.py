"""Measurements: a load generator for any OpenAI-compatible server, and the project's own figures.

`exl3ctl bench` is for people; `python -m ops.bench NAME` (which `make bench NAME=…` runs) prints figures that are compared from
one version to the next.
"""
