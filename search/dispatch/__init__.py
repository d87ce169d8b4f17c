"""One choice of kernels for every number of rows: a few kernels, and the ranges of m that each serves."""
