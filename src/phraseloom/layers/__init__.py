"""nn.Modules that know nothing of text, configuration or training; they take plain values and built sub-modules."""
