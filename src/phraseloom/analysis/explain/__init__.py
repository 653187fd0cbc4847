"""What the explorer page shows of one sentence: tokens, attention, phrases, links; typed as JSON (`sentence.py`)."""
