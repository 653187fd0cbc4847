"""Tables of the papers made again: what to run, running it, the numbers beside the paper's, and whether its claims held."""
