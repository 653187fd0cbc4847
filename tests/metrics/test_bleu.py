"""BLEU, chrF, TER: equal to sacreBLEU and to multi-bleu's formula; empty, short and unequal input."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.errors import DataError, UsageError
from phraseloom.metrics.bleu import (
    SCORERS,
    ascii_tokens,
    bleu_by_length,
    compound_tokens,
    count_tokens,
    make_scorer,
)
from phraseloom.text.lines import check_parallel, read_lines

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", ",", ".", "was", "not", "The", "Cat", "\u00e4hm", "I'm", "3.5"]


def corpus(seed: int, sentences: int, *, noise: float = 0.3, longest: int = 20) -> tuple[list[str], list[str]]:
    rng = random.Random(seed)
    references = [rng.choices(WORDS, k=rng.randint(1, longest)) for _ in range(sentences)]
    hypotheses = [
        [rng.choice(WORDS) if rng.random() < noise else w for w in r if rng.random() > 0.05] for r in references
    ]
    return [" ".join(h) for h in hypotheses], [" ".join(r) for r in references]


def multi_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Moses' multi-bleu.perl from its description: byte tokens, clipped counts, closest length (the shorter of two)."""
    correct, total = [0] * 4, [0] * 4
    length = closest = 0
    for i, line in enumerate(hypotheses):
        tokens = line.encode().split()
        others = [lines[i].encode().split() for lines in references]
        length += len(tokens)
        closest += min((abs(len(o) - len(tokens)), len(o)) for o in others)[1]
        for n in range(1, 5):
            mine = Counter(tuple(tokens[j : j + n]) for j in range(len(tokens) - n + 1))
            most: Counter[tuple[bytes, ...]] = Counter()
            for o in others:
                most |= Counter(tuple(o[j : j + n]) for j in range(len(o) - n + 1))
            correct[n - 1] += (mine & most).total()
            total[n - 1] += mine.total()
    if 0 in correct:
        return 0.0
    penalty = 1.0 if length >= closest else math.exp(1 - closest / length)
    return 100 * penalty * math.exp(sum(math.log(c / t) for c, t in zip(correct, total, strict=True)) / 4)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [1, 3])
def test_tokenized_bleu_is_multi_bleu(seed: int, count: int) -> None:
    hypotheses, first = corpus(seed, 40, noise=0.2)
    references = [first, *(corpus(seed, 40, noise=0.1 * i)[0] for i in range(1, count))]
    assert make_scorer("tokenized").corpus(hypotheses, references).value == pytest.approx(
        multi_bleu(hypotheses, references)
    )


def get_ende_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> float:
    """tensor2tensor's get_ende_bleu.sh: tokens, hyphens inside words as tokens (left to right, none twice), multi-bleu."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=language)

    def split(line: str) -> str:
        text, result, at = tokenizer.tokenize(line, return_str=True), "", 0
        while at < len(text):
            a, hyphen, b = text[at : at + 1], text[at + 1 : at + 2], text[at + 2 : at + 3]
            if hyphen == "-" and b and " " not in (a, b):
                result, at = f"{result}{a} ##AT##-##AT## {b}", at + 3
            else:
                result, at = result + a, at + 1
        return result

    return multi_bleu([split(line) for line in hypotheses], [[split(line) for line in references]])


HYPHENS = ["E-Mail-Adresse", "a-b-c", "-", "--", "rich-text,", "3-4", "z.B.", "Haus-", '"gut"', "don't", "&"]


@pytest.mark.parametrize("language", ["de", "en", "fr"])
def test_t2t_bleu_is_that_of_tensor2tensor(language: str) -> None:
    rng = random.Random(4)
    references = [" ".join(rng.choices(WORDS + HYPHENS, k=rng.randint(1, 20))) for _ in range(60)]
    hypotheses = [" ".join(w for w in line.split() if rng.random() > 0.2) for line in references]
    scorer = make_scorer(f"t2t-{language}")
    score = scorer.corpus(hypotheses, [references])
    assert score.value == pytest.approx(get_ende_bleu(hypotheses, references, language))
    assert score.value != pytest.approx(make_scorer("tokenized").corpus(hypotheses, [references]).value, abs=0.1)
    assert (score.name, f"|tok:t2t-{language}-sacremoses-" in score.signature) == ("BLEU-t2t", True)
    assert score.signature.startswith("nrefs:1|case:mixed|eff:no|tok:") and "|smooth:none|" in score.signature


def test_hyphens_inside_words_become_tokens() -> None:
    text = compound_tokens("Die E-Mail-Adresse (a-b-c) -x", language="de")
    assert text == "Die E ##AT##-##AT## Mail ##AT##-##AT## Adresse ( a ##AT##-##AT## b-c ) -x"


@pytest.mark.parametrize("name", ["t2t-", "t2t-german", "t2t-DE", "t2t-d1"])
def test_t2t_needs_a_language(name: str) -> None:
    with pytest.raises(UsageError, match="no language code"):
        make_scorer(name)


ODD = st.text(st.sampled_from(list("ab \u00a0\u3000\x1c\x85\u2028\t\x0b")), max_size=30)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(ODD, ODD), min_size=1, max_size=4))
def test_tokenized_bleu_splits_bytes_at_ascii_blanks_only(pairs: list[tuple[str, str]]) -> None:
    hypotheses, references = [h for h, _ in pairs], [r for _, r in pairs]
    mine = make_scorer("tokenized").corpus(hypotheses, [references]).value
    assert mine == pytest.approx(multi_bleu(hypotheses, [references]), abs=1e-9)


def test_ascii_tokens_counts_what_bytes_split_counts() -> None:
    line = "a\u00a0b c\u2028d\x1ce  f\tg"
    assert len(ascii_tokens(line).split()) == len(line.encode().split()) == 4


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_scores_and_signatures_are_sacrebleus(name: str) -> None:
    from sacrebleu.metrics import BLEU, CHRF, TER

    hypotheses, references = corpus(7, 60)
    metric = {"bleu": BLEU, "chrf": CHRF, "ter": TER}[name]()
    theirs = metric.corpus_score(hypotheses, [references])
    mine = make_scorer(name).corpus(hypotheses, [references])
    assert mine.value == pytest.approx(theirs.score, abs=1e-12)
    assert mine.signature == str(metric.get_signature().format())
    assert "version:" in mine.signature
    assert mine.name == theirs.name
    assert mine.signature in str(mine)


@pytest.mark.parametrize("name", SCORERS)
def test_sums_of_parts_are_the_whole(name: str) -> None:
    hypotheses, references = corpus(3, 30)
    scorer = make_scorer(name)
    statistics = scorer.statistics(hypotheses, [references])
    assert statistics.shape[0] == 30
    one_by_one = np.concatenate([scorer.statistics([h], [[r]]) for h, r in zip(hypotheses, references, strict=True)])
    assert np.array_equal(statistics, one_by_one)
    assert scorer.corpus(hypotheses, [references]).value == scorer.value(statistics.sum(0))


@pytest.mark.parametrize("name", ["bleu", "chrf", "tokenized"])
def test_all_empty_hypotheses_score_zero(name: str) -> None:
    _, references = corpus(1, 10)
    assert make_scorer(name).corpus([""] * 10, [references]).value == 0.0
    assert make_scorer(name).corpus([" \t"] * 10, [references]).value == 0.0


def test_an_empty_hypothesis_is_not_replaced_by_its_reference() -> None:
    """PR sacrebleu 132: dropping empty hypotheses gave BLEU for nothing."""
    _, references = corpus(2, 20)
    full = make_scorer("bleu").corpus(references, [references]).value
    half = make_scorer("bleu").corpus(references[:10] + [""] * 10, [references])
    assert full == pytest.approx(100)
    assert half.value < 75
    assert f"ref_len = {sum(count_tokens(references))}" in half.detail


def test_perfect_and_one_line() -> None:
    line = "a cat sat on the mat ."
    assert make_scorer("bleu").corpus([line], [[line]]).value == pytest.approx(100)
    assert make_scorer("ter").corpus([line], [[line]]).value == 0.0
    assert make_scorer("ter").corpus([""], [[line]]).value == pytest.approx(100)


@pytest.mark.parametrize("count", [0, 9, 11])
def test_different_line_counts_are_refused(count: int) -> None:
    hypotheses, references = corpus(1, 11)
    hypotheses = (hypotheses + hypotheses)[:count]
    if count == 11:
        references = references[:10]
    with pytest.raises(DataError, match=rf"{len(references)} lines, but .* {count}"):
        make_scorer("bleu").statistics(hypotheses, [references])


def test_the_place_where_blank_lines_part_is_shown() -> None:
    with pytest.raises(DataError, match=r"b has 4 lines, but a has 3; line 2 is blank in only one"):
        check_parallel({"a": ["x", "y", "z"], "b": ["x", "", "y", "z"]})
    with pytest.raises(DataError, match=r"no blank line tells where"):
        check_parallel({"a": ["x"], "b": ["x", "y"]})
    with pytest.raises(DataError, match="a has no lines"):
        check_parallel({"a": [], "b": []})
    check_parallel({"a": ["", "x"], "b": ["x", ""]})


def test_unknown_names_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="'blue'"):
        make_scorer("blue")
    for name in ("13", "__class__", "../x"):
        with pytest.raises(UsageError, match=r"no BLEU tokenizer '[^']*'; choose from .*13a"):
            make_scorer("bleu", tokenize=name)
    from sacrebleu.metrics import BLEU

    fetched = {"flores200", "flores101", "spm", "spBLEU-1K"} & {*BLEU.TOKENIZERS}
    assert len(fetched) >= 3  # sacreBLEU has spBLEU-1K since 2.6
    for name in sorted(fetched):
        with pytest.raises(UsageError, match=r"here: sacreBLEU would fetch .*; choose from (?!.*flores)"):
            make_scorer("bleu", tokenize=name)


@pytest.mark.parametrize(("name", "package"), [("ja-mecab", r"sacrebleu\[ja\]"), ("ko-mecab", r"sacrebleu\[ko\]")])
def test_a_missing_package_of_a_tokenizer_is_named(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("MeCab", "mecab_ko"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in ("tokenizer_ja_mecab", "tokenizer_ko_mecab"):
        monkeypatch.delitem(sys.modules, f"sacrebleu.tokenizers.{module}", raising=False)
    with pytest.raises(UsageError, match=f"{name}.*; pip install '{package}'"):
        make_scorer("bleu", tokenize=name)


def test_lowercase_and_tokenizers_are_in_the_signature() -> None:
    score = make_scorer("bleu", tokenize="char", lowercase=True).corpus(["A cat sat here"], [["a Cat sat here"]])
    assert score.value == pytest.approx(100)
    assert "case:lc" in score.signature
    assert "tok:char" in score.signature


def test_bleu_by_length_groups_and_adds_up() -> None:
    hypotheses, references = corpus(5, 80, longest=60)
    scorer = make_scorer("bleu")
    statistics = scorer.statistics(hypotheses, [references])
    lengths = [len(r.split()) for r in references]
    groups = bleu_by_length(scorer, statistics, lengths)
    assert [g.label for g in groups] == ["≤15", "16–30", "31–45", ">45"]
    assert sum(g.sentences for g in groups) == 80
    for group in groups:
        chosen = [i for i, n in enumerate(lengths) if n > group.above and (group.up_to is None or n <= group.up_to)]
        alone = scorer.corpus([hypotheses[i] for i in chosen], [[references[i] for i in chosen]])
        assert group.sentences == len(chosen)
        assert group.score == alone


def test_bleu_by_length_edges_belong_to_the_lower_group_and_zero_is_counted() -> None:
    scorer = make_scorer("bleu")
    statistics = scorer.statistics(["a b c d"] * 4, [["a b c d"] * 4])
    groups = bleu_by_length(scorer, statistics, [0, 2, 3, 3], edges=[2, 5, 9])
    assert [(g.label, g.sentences) for g in groups] == [("≤2", 2), ("3–5", 2), ("6–9", 0), (">9", 0)]
    assert groups[2].score is None
    for edges in ([], [5, 2], [0, 3], [3, 3]):
        with pytest.raises(UsageError, match="edges"):
            bleu_by_length(scorer, statistics, [1] * 4, edges=edges)
    with pytest.raises(DataError, match="3 lines"):
        bleu_by_length(scorer, statistics, [1] * 3)


def test_count_tokens() -> None:
    assert count_tokens(["a house.", "", "x\u00a0y z"], tokenize="13a") == [3, 0, 3]
    assert count_tokens(["a house.", "", "x\u00a0y z"], tokenize="none") == [2, 0, 2]


def test_real_text_against_itself(shared: Path) -> None:
    lines = list(read_lines(shared / "data" / "multi30k" / "test_2016_flickr.de.gz"))
    assert make_scorer("bleu").corpus(lines, [lines]).value == pytest.approx(100)
    shifted = lines[1:] + lines[:1]
    assert make_scorer("tokenized").corpus(shifted, [lines]).value == pytest.approx(
        multi_bleu(shifted, [lines]), abs=1e-9
    )


def test_the_example_in_the_documentation_runs(root: Path) -> None:
    text = (root / "docs" / "evaluation.md").read_bytes().decode()
    code = text.split("```python\n", 1)[1].split("```", 1)[0]
    lines = ["a b c d"] * 3
    names = {"hypotheses": lines, "baseline": lines, "system": lines, "references": lines, "sources": lines}
    exec(compile(code, "docs/evaluation.md", "exec"), names)
