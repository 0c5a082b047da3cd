"""Runs a scheduler and a worker as child processes on this machine, for `octavo serve` and `octavo demo`."""
