"""Search under constraints: exact where the beam is wide, never wrong where it is narrow, and the same in every batch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding.toys import ToyModel, random_table

from phraseloom.decoding.constrained import allocate, constrained_search
from phraseloom.decoding.constraint_tracker import ConstraintTracker, spellings
from phraseloom.decoding.constraints import Constraints
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.penalties import NoPenalty, SockeyePenalty, WuPenalty
from phraseloom.options.text import SentencepieceConfig, TextConfig
from phraseloom.text.subword_nmt import HEADER, SubwordNmt
from phraseloom.text.tokenizer import Side, Tokenizer, learn_subwords
from phraseloom.text.vocabulary import EOS, SPECIALS, Vocabulary
from phraseloom.text.words import Words

PENALTIES = {
    "none": (NoPenalty(), lambda n: 1.0),
    "wu": (WuPenalty(1.0), lambda n: (5 + n) / 6),
    "mean": (SockeyePenalty(1.0, 0.0), float),
}


def side_of(subwords, text: TextConfig | None = None) -> Side:
    return Tokenizer(text or TextConfig(), "en", "en", subwords, subwords).target


def sides() -> dict[str, Side]:
    """Vocabularies of four to six pieces, in which words have several segmentations and can go on."""
    bpe = SubwordNmt(f"{HEADER}\na b</w>\n", Vocabulary([*SPECIALS, "a@@", "b@@", "a", "b", "ab"]))
    pieces = learn_subwords(["a b", "ab ba", "b a ab"], SentencepieceConfig(size=8, byte_fallback=False))
    words = Words(Vocabulary([*SPECIALS, "a", "b", "c", "a_b"]), joined=True)
    dotted = Words(Vocabulary([*SPECIALS, "a", ".", "'s", "b"]))
    quoted = SubwordNmt(f"{HEADER}\n", Vocabulary([*SPECIALS, "a@@", "a", ".", "'s"]))
    return {
        "subword_nmt": side_of(bpe),
        "subword_nmt and moses": side_of(quoted, TextConfig(tokenize="moses")),
        "sentencepiece": side_of(pieces),
        "joined": Tokenizer(TextConfig(tokenize="moses"), "en", "en", dotted, words).target,
        "moses": side_of(dotted, TextConfig(tokenize="moses")),
    }


SIDES = sides()
PHRASES = {
    "subword_nmt": ["a", "b", "ab", "a b", "b ab", "ba", "a b a"],
    "subword_nmt and moses": ["a", "aa", "a.", "aa.", "a a"],
    "sentencepiece": ["a", "b", "ab", "a b", "ba", "b a b"],
    "joined": ["a", "b", "a b", "b c", "a b c", "c a"],
    "moses": ["a", "a.", "b.", "a's", "a b", "b a"],
}


def options(beam: int, n_best: int = 1, **rest) -> SearchOptions:
    return SearchOptions(beam=beam, n_best=n_best, begin=0, banned=(0, 1, 2), **rest)


def tracker_of(side: Side, constraints: Constraints) -> ConstraintTracker:
    return ConstraintTracker(side, constraints, [spellings(side, phrase) for phrase in constraints.include])


def allowed_outputs(
    table, side: Side, constraints: Constraints, longest: int, divisor
) -> list[tuple[float, list[int]]]:
    """(score, tokens) of every output that meets the constraints, best first; slow and obvious."""
    result = []
    for length in range(longest + 1):
        for tokens in itertools.product(range(EOS + 1, len(side.vocabulary)), repeat=length):
            if not constraints.unmet(side.decode(tokens)):
                total = sum(float(table(0, tokens[:i])[t]) for i, t in enumerate((*tokens, EOS)))
                if math.isfinite(total):
                    result.append((total / divisor(length + 1), list(tokens)))
    return sorted(result, key=lambda pair: -pair[0])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), name=st.sampled_from(sorted(SIDES)), penalty=st.sampled_from(sorted(PENALTIES)),
    inside=st.booleans(), data=st.data(),
)  # fmt: skip
def test_a_wide_beam_is_enumeration_of_the_allowed_outputs(seed, name, penalty, inside, data) -> None:
    side, longest = SIDES[name], 3
    chosen = data.draw(st.lists(st.sampled_from(PHRASES[name]), max_size=3, unique=True))
    cut = data.draw(st.integers(0, len(chosen)))
    constraints = Constraints(tuple(chosen[:cut]), tuple(chosen[cut:]), inside)
    table, (rule, divisor) = random_table(len(side.vocabulary), seed), PENALTIES[penalty]
    truth = allowed_outputs(table, side, constraints, longest, divisor)
    if not truth or any(
        Constraints(exclude=(f,), inside_words=inside).unmet(p) for p in chosen[:cut] for f in chosen[cut:]
    ):
        return
    tracker = tracker_of(side, constraints)
    [found] = constrained_search(ToyModel(table), [0], Limits.of([longest]), options(2000, 5, penalty=rule), [tracker])
    assert [h.tokens for h in found] == [tokens for _, tokens in truth[:5]]
    assert [h.score for h in found] == pytest.approx([score for score, _ in truth[:5]], abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(sorted(SIDES)), beam=st.integers(1, 6), data=st.data())
def test_every_output_meets_its_constraints_and_does_not_depend_on_its_batch(seed, name, beam, data) -> None:
    side, longest, lines = SIDES[name], 7, data.draw(st.integers(1, 3))
    n_best = data.draw(st.integers(1, beam))
    constraints = []
    for _ in range(lines):
        include = data.draw(st.lists(st.sampled_from(PHRASES[name]), max_size=2, unique=True))
        exclude = data.draw(st.lists(st.sampled_from(PHRASES[name]), max_size=2, unique=True))
        exclude = [f for f in exclude if not any(Constraints(exclude=(f,)).unmet(p) for p in include)]
        constraints.append(Constraints(tuple(include), tuple(exclude)))
    trackers = [tracker_of(side, c) for c in constraints]
    table, sizes = random_table(len(side.vocabulary), seed), [longest + b for b in range(lines)]
    together = constrained_search(
        ToyModel(table), list(range(lines)), Limits.of(sizes), options(beam, n_best, exact=False), trackers
    )
    for b in range(lines):
        [alone] = constrained_search(
            ToyModel(table), [b], Limits.of(sizes[b : b + 1]), options(beam, n_best, exact=False), trackers[b : b + 1]
        )
        assert alone == together[b]
        for hypothesis in alone:
            assert not constraints[b].unmet(side.decode(hypothesis.tokens))
            assert len(hypothesis.tokens) <= sizes[b]


def test_a_phrase_comes_although_the_model_never_wants_it() -> None:
    side = SIDES["subword_nmt"]
    likes = torch.full((len(side.vocabulary),), -20.0, dtype=torch.float64)
    likes[7] = 0.0  # b
    likes[EOS] = -2.0
    tracker = tracker_of(side, Constraints(("a b a",), ("ab",)))
    [found] = constrained_search(
        ToyModel(lambda sentence, prefix: likes.log_softmax(-1)), [0], Limits.of([8]), options(1), [tracker]
    )
    assert "a b a" in side.decode(found[0].tokens)
    assert found[0].log_prob < -40


def test_a_forbidden_word_is_forbidden_in_every_segmentation() -> None:
    """`ab` is one piece or two; `a@@ b` gives it as well."""
    side = SIDES["subword_nmt"]
    pieces = {"a@@": 4, "b": 7, "ab": 8}

    def likes(sentence: int, prefix: tuple[int, ...]) -> torch.Tensor:
        row = torch.full((len(side.vocabulary),), -30.0, dtype=torch.float64)
        row[pieces["b"] if prefix[-1:] == (pieces["a@@"],) else pieces["ab"]] = 0.0
        row[pieces["a@@"]], row[EOS] = -0.5, -5.0
        return row.log_softmax(-1)

    free = constrained_search(ToyModel(likes), [0], Limits.of([6]), options(2), [tracker_of(side, Constraints())])
    assert "ab" in side.decode(free[0][0].tokens).split()
    for beam in (1, 2, 5):
        tracker = tracker_of(side, Constraints(exclude=("ab",)))
        [found] = constrained_search(ToyModel(likes), [0], Limits.of([6]), options(beam), [tracker])
        assert "ab" not in side.decode(found[0].tokens).split()


def test_what_cannot_be_met_gives_the_output_with_the_fewest_violations() -> None:
    side = SIDES["subword_nmt"]
    constraints = Constraints(("a", "b", "ab", "ba"))
    table = random_table(len(side.vocabulary), 3)
    [found] = constrained_search(ToyModel(table), [0], Limits.of([3]), options(4), [tracker_of(side, constraints)])
    assert len(constraints.unmet(side.decode(found[0].tokens))) == 1


def test_every_word_forbidden_leaves_an_output_all_the_same() -> None:
    side = SIDES["joined"]
    constraints = Constraints(exclude=("a", "b", "c"))
    [found] = constrained_search(
        ToyModel(random_table(len(side.vocabulary), 1)), [0], Limits.of([3], [2]), options(2),
        [tracker_of(side, constraints)],
    )  # fmt: skip
    assert constraints.unmet(side.decode(found[0].tokens))


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), beam=st.integers(1, 3))
def test_a_line_with_many_constraints_does_not_change_its_neighbours(seed, beam) -> None:
    side = side_of(Words(Vocabulary([*SPECIALS, *(f"w{i}" for i in range(40))])))
    constraints = [Constraints(("w1 w2 w3 w4", "w4 w5", "w3 w9 w8")), Constraints(("w7",), ("w8",))]
    trackers = [tracker_of(side, c) for c in constraints]
    table = random_table(len(side.vocabulary), seed)
    chosen = options(beam, beam, exact=False)
    together = constrained_search(ToyModel(table), [0, 1], Limits.of([14, 9]), chosen, trackers)
    assert together[1] == constrained_search(ToyModel(table), [1], Limits.of([9]), chosen, trackers[1:])[0]
    for found, asked in zip(together, constraints, strict=True):
        assert all(not asked.unmet(side.decode(h.tokens)) for h in found)


def test_shares_of_the_beam() -> None:
    never = float("-inf")
    totals = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -9.0, never]])
    bank = torch.tensor([[0, 0, 0, 0, 2, 1]])
    chosen = {width: allocate(totals, bank, torch.tensor([width]), 3)[0].tolist() for width in (1, 2, 3, 4, 6)}
    assert chosen[1] == [False] * 4 + [True, False]
    assert chosen[2] == [True, False, False, False, True, False]
    assert chosen[3] == [True, True, False, False, True, False]  # the higher bank has one candidate and leaves a place
    assert chosen[4] == [True, True, True, False, True, False]
    assert chosen[6] == [True] * 5 + [False]


@pytest.mark.parametrize(("name", "phrase"), [("sentencepiece", "ba"), ("joined", "a b c"), ("subword_nmt", "b ab")])
def test_each_subword_of_the_longest_spelling_is_progress(name: str, phrase: str) -> None:
    """Also the space that a word may begin with; the first subword had no share of the beam."""
    side = SIDES[name]
    longest = spellings(side, phrase)[-1]
    state = (tracker := tracker_of(side, Constraints((phrase,)))).start
    for number, token in enumerate(longest, start=1):
        assert state.next_tokens[token] >= number
        state = tracker.extend(state, token)
        assert state.progress == number
    assert state.violations == 0 and tracker.width(1) == 1 + len(longest)


def test_half_a_character_is_no_end_of_a_required_phrase() -> None:
    side = side_of(learn_subwords(["the man", "the cat"], SentencepieceConfig(size=276, byte_fallback=True)))
    half, *word = (side.vocabulary.id(piece) for piece in ("<0xC3>", "<0xC3>", "<0x9C>"))
    required, forbidden = (tracker_of(side, c) for c in (Constraints(("Ü",)), Constraints((), ("Ü",))))
    for tokens, unmet in (([*word], 0), ([half, *word], 1), ([*word, half], 1), ([*word, half, word[1]], 1)):
        assert required.extend_all(tokens).violations == unmet, side.decode(tokens)
    assert forbidden.extend_all([half, *word]).violations == 1
    assert Constraints(("Ü",)).unmet("a \ufffdÜ") == ["Ü"] and Constraints((), ("Ü",)).unmet("a \ufffdÜ") == ["Ü"]


def test_spellings() -> None:
    joined = SIDES["joined"]
    assert spellings(joined, "a b") == [(7,), (4, 5)]
    assert spellings(joined, "a b c") == [(7, 6), (4, 5, 6)]
    assert spellings(joined, "d") == []
    assert spellings(SIDES["subword_nmt"], "ab") == [(8,)]
    assert spellings(SIDES["moses"], "a's.") == [(4, 6, 5)]
