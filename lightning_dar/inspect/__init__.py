"""Inspecting checkpoints on held-out text: numbers, then charts and words made of them."""
