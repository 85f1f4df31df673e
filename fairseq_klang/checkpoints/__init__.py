"""Checkpoints: reading, starting from, averaging and saving them."""
