"""Models: configuration (no torch), encoder, decoder, the translation model, and how it is built and stored."""
