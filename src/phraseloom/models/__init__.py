"""Models: encoders, decoders, the translation and language models; how they are built and stored."""
