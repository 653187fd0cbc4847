"""The command line: one module a verb, thin (parse, call, print); `main.py` holds the table of verbs."""
