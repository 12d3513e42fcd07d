"""Studies: a matrix of variants and seeds, each cell an ordinary `fit` run, and what came out of it."""
