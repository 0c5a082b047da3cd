"""The sub-commands of `octavo`."""
