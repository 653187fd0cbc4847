"""The options of recipes, commands and servers, as pydantic models: one declaration for each option. No torch here."""
