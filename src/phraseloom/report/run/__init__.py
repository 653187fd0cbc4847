"""The report of runs: what is in their folders, scores, and the page."""
