"""Pure functions on tensors: returns, baselines, objectives, KL, reductions, and algorithms as values."""
