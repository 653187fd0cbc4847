"""The small random model of the tests of the translator, for those of the server."""

from tests.decoding.conftest import model_folder, translator

__all__ = ["model_folder", "translator"]
