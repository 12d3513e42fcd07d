"""Checkpoints that describe themselves."""
