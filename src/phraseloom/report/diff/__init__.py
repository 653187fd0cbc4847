"""The comparison of two runs: records, page, text."""
