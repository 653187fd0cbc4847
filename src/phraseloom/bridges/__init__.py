"""Models of other programs: read from their files, and written into them (docs/bridges.md)."""
