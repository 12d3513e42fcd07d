"""Measuring routing, and intervening in it, on any model whose strategy lays its reads open."""
