"""Reproduce tables of the papers: plan and run the steps, compare the numbers with the paper's, and test its claims."""
