"""Datasets: prepare raw parallel text as memory-mapped shards, and read shards as batches."""
