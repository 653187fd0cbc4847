"""Normalise, tokenise and detokenise a line: Moses through sacremoses, jieba for Chinese.

`prepare` normalises punctuation, tokenises, and lowercases or truecases, in this order. `detokenise` undoes the truecasing
and the tokenisation. The escapes of the Moses tokeniser (`&apos;`) are off.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from phraseloom.errors import UsageError
from phraseloom.options.languages import base_language, is_chinese
from phraseloom.options.text import TextConfig
from phraseloom.text.casing import lower_case
from phraseloom.text.truecase import Truecaser, undo_truecase

_HAN = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\u3000-\u303f"
_CONTROLS = re.compile("[\\x00-\\x1f]+")
_DOTS = "DOTMULTI"
_BETWEEN_HAN = re.compile(f"(?<=[{_HAN}]) +(?=[{_HAN}])")


class Normaliser:
    """Applies the `text` options of a recipe to one language.


    `truecaser`: that of `config.truecase`; without it lines are not truecased, but `detokenise` undoes it all the same.
    """

    def __init__(self, config: TextConfig, language: str, truecaser: Truecaser | None = None) -> None:
        self.config, self.language, self.truecaser = config, language, truecaser
        self.identity = config == TextConfig()
        self._lower = lower_case(language)
        # jieba is for Chinese; the other side of such a pair is tokenised by Moses.
        self.tokenizer = "moses" if config.tokenize == "jieba" and not is_chinese(language) else config.tokenize
        self._normalise = _moses_normaliser(language) if config.normalize == "moses" else None
        self._tokenise = {"none": None, "moses": moses_tokens, "jieba": _jieba_tokenise}[self.tokenizer]
        if self.tokenizer == "jieba":
            _jieba()

    def __call__(self, line: str) -> str:
        """The normalised line, tokenised with single spaces between words if `tokenize` is set."""
        if self.identity:
            return line
        line = self.characters(line)
        if self._tokenise is not None:
            line = self._tokenise(line, self.language)
        if self.truecaser is not None:
            line = " ".join(self.truecaser(line.split(" ")))
        return self.lower(line)

    def characters(self, text: str) -> str:
        """The text with its punctuation normalised, neither tokenised nor in lower case."""
        return self._normalise(text) if self._normalise is not None else text

    def lower(self, text: str) -> str:
        """The text in lower case if the option `lowercase` is on."""
        return self._lower(text) if self.config.lowercase else text

    @property
    def keeps_text(self) -> bool:
        """Whether `detokenise` returns every line as it is."""
        return not self.config.truecase and self._tokenise is None

    @property
    def looks_at_end(self) -> bool:
        """Whether `detokenise` decides about early words by the last ones, as sacremoses does for Czech numbers."""
        return self.tokenizer == "moses" and base_language(self.language) == "cs"

    def detokenise(self, line: str) -> str:
        """The line with true case and tokenisation undone."""
        if self.config.truecase:
            line = " ".join(undo_truecase(line.split(" "), self.language))
        if self.tokenizer == "moses":
            return str(_moses_detokenizer(self.language).detokenize(line.split(" "), unescape=False)) if line else line
        if self.tokenizer == "jieba":
            return _BETWEEN_HAN.sub("", line)
        return line


@functools.lru_cache(maxsize=16)
def _moses_normaliser(language: str) -> Any:
    from sacremoses import MosesPunctNormalizer

    return MosesPunctNormalizer(lang=base_language(language)).normalize


@functools.lru_cache(maxsize=16)
def _moses_tokenizer(language: str) -> Any:
    from sacremoses import MosesTokenizer

    return MosesTokenizer(lang=base_language(language))


@functools.lru_cache(maxsize=16)
def _moses_detokenizer(language: str) -> Any:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang=base_language(language))


def moses_tokens(line: str, language: str) -> str:
    """The Moses tokens of a line with single spaces between them, without escapes. Control characters separate words."""
    if not line.isprintable():
        line = _CONTROLS.sub(" ", line)  # sacremoses would remove them and join their neighbours
    if _DOTS in line:
        return _with_marker_of_dots(line, language)
    return " ".join(_moses_tokenizer(language).tokenize(line, escape=False))  # as text it may have blanks at the end


def _with_marker_of_dots(line: str, language: str) -> str:
    """`moses_tokens` of a line with the word that sacremoses writes for `...` and reads as dots."""
    kept = "DOTXMULTI"
    while kept in line:
        kept = kept.replace("X", "XX", 1)
    return moses_tokens(line.replace(_DOTS, kept), language).replace(kept, _DOTS)


@functools.lru_cache(maxsize=1)
def _jieba() -> Any:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import jieba
    except ImportError as error:
        raise UsageError("tokenize: jieba needs the package jieba", hint="install phraseloom[zh]") from error
    # jieba.initialize would read a marshalled cache from the shared temporary folder.
    cutter = jieba.Tokenizer()
    cutter.FREQ, cutter.total = cutter.gen_pfdict(cutter.get_dict_file())
    cutter.initialized = True
    return cutter


def _jieba_tokenise(line: str, language: str) -> str:
    return " ".join(word for word in _jieba().cut(line) if not word.isspace())
