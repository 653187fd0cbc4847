"""The word-or-phrase gate: a classifier predicts how many target words each source token gives.

    φ_e = softmax(FFNN(x_e; h_e) - shift)     x_e embedding and h_e encoder state of source token e
    word share of e = φ_e0 + φ_e1             four classes: none, one, two, three or more words
                    = φ_e0                    two classes: at most one word, a phrase

`shift` undoes the prior that training had and the text has not: where class c was kept with probability s_c and had weight w_c
in the loss, FFNN learns log(s_c w_c) + log p(c | e), so shift_c = log(s_c w_c) (Elkan 2001). At the setting of the released
program and a share of phrases of 1.6 %, this is a factor of 184 in the odds. Without a shift φ is what FFNN says.

The decoder's scores know how often phrases occur, so the gate may count that twice. A `Tempering` weighs it: a phrase then has
the odds (o · odds of φ)^w. With o = 1 / (the odds of a phrase in the text), a w near 0 has no influence.

Park and Tsvetkov 2019, §2.3. A decoder with attention a_e writes a word with λ_word = Σ_e a_e · (word share of e), and a
phrase with λ_phrase = Σ_e a_e · (1 - word share of e). Both are carried along: 1 - λ_word would be rounding where it is small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

WORD_CLASSES = {4: 2, 2: 1}
"""By the number of classes: how many of the first classes mean at most one word."""


class Tempering(NamedTuple):
    """Multiply the odds of a phrase by `odds` > 0, then raise them to the power of `weight`; 1 and 1 leave them as trained."""

    odds: float = 1.0
    weight: float = 1.0


AS_TRAINED = Tempering()


class Fertility(nn.Module):
    """Linear maps with ReLU between them: embeddings and states of source tokens → logits of their classes.

    `inputs`: both (embedding, then state), states or embeddings. `widths`: of the inner layers; (4096, 1024) in the released
    program. `width`: I, the size of the input. `shift`: of each class, subtracted from the logits in `forward`; empty if none.
    """

    def __init__(
        self,
        width_embedding: int,
        width_states: int,
        classes: int = 4,
        inputs: str = "both",
        widths: Sequence[int] = (4096, 1024),
        shift: Sequence[float] = (),
    ) -> None:
        super().__init__()
        read = {"both": width_embedding + width_states, "states": width_states, "embeddings": width_embedding}
        if classes not in WORD_CLASSES or inputs not in read:
            raise ValueError(f"fertility of {classes} classes from {inputs}: known are 4 and 2, and {', '.join(read)}")
        self.classes, self.inputs, self.width = classes, inputs, read[inputs]
        self.shift_C: Tensor
        self.register_buffer("shift_C", torch.zeros(classes), persistent=False)
        if shift:
            self.set_shift(shift)
        self.maps = nn.ModuleList(nn.Linear(*sizes) for sizes in pairwise([self.width, *widths, classes]))

    def set_shift(self, shift: Sequence[float]) -> None:
        """Take these off the logits from now on, one number a class."""
        if len(shift) != self.classes:
            raise ValueError(f"a shift of {len(shift)} numbers for {self.classes} classes")
        self.shift_C = torch.tensor(shift, dtype=torch.float32, device=self.shift_C.device)

    def reset(self) -> None:
        """Draw the parameters again, as torch's Linear does."""
        for linear in self.maps:
            assert isinstance(linear, nn.Linear)
            linear.reset_parameters()

    def join(self, embeddings_BSE: Tensor, states_BSD: Tensor) -> Tensor:
        """The input of the first map for each token, (…, I)."""
        if self.inputs == "both":
            return torch.cat((embeddings_BSE, states_BSD), -1)
        return states_BSD if self.inputs == "states" else embeddings_BSE

    def classify(self, joined_BSI: Tensor) -> Tensor:
        """The result of `join` → logits (…, C) as they are trained, without the shift."""
        hidden = joined_BSI
        for number, linear in enumerate(self.maps):
            hidden = linear(hidden.relu() if number else hidden)
        return hidden

    def forward(self, embeddings_BSE: Tensor, states_BSD: Tensor) -> Tensor:
        """Embeddings (…, E) and encoder states (…, D) of source tokens → logits (…, C), less the shift."""
        return self.calibrate(self.classify(self.join(embeddings_BSE, states_BSD)))

    def calibrate(self, logits_BSC: Tensor) -> Tensor:
        """Trained logits (…, C) less the shift; at least float32."""
        return logits_BSC - self.shift_C

    def gate(self, logits_BSC: Tensor, tempering: Tempering = AS_TRAINED) -> Tensor:
        """Trained logits (…, S, C) → (…, S, 2): the `shares` as the decoder reads them."""
        logits_BSC = self.calibrate(logits_BSC)
        if tempering == AS_TRAINED:
            return self.shares(logits_BSC)
        words, phrases = logits_BSC.tensor_split((WORD_CLASSES[self.classes],), -1)
        log_odds = phrases.logsumexp(-1) - words.logsumexp(-1) + math.log(tempering.odds)
        log_odds = tempering.weight * log_odds
        return torch.stack((-log_odds, log_odds), -1).sigmoid()

    @staticmethod
    def shares(logits_BSC: Tensor) -> Tensor:
        """(…, S, C) → (…, S, 2): the probabilities of at most one word and of a phrase. At least float32.

        Neither is 1 - the other, which would round a small one.
        """
        exact = torch.promote_types(logits_BSC.dtype, torch.float32)
        classes_BSC = logits_BSC.softmax(-1, dtype=exact)
        words, phrases = classes_BSC.tensor_split((WORD_CLASSES[logits_BSC.shape[-1]],), -1)
        return torch.stack((words.sum(-1), phrases.sum(-1)), -1)
