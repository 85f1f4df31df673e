"""Checks before work: of a command line, and of an installation."""
