"""Training: the loop, the optimiser, checkpoints, processes, guards, and the run folder around them."""
