"""Translations over HTTP: one process, one worker thread, limits on everything that a client can ask for."""
