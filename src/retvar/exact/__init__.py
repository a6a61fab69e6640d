"""Exact solutions: values, variances, fixed points, distributions and sampled checks."""
