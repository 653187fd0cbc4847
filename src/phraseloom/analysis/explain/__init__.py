"""The data of the explorer page for one sentence: tokens, attention, phrases, links (JSON schema: `sentence.py`)."""
