"""Datasets: raw parallel text to memory-mapped shards, and shards to batches."""
