"""Neural phrase-based machine translation (NPMT, Huang et al. 2018): each source position writes a target segment.

    p(y | x) = Σ over all cuts of y into as many segments as x has words  Π_t p(segment_t END | h_t)

Each source position t writes a segment of 0 … `max_segment` target words from its vector h_t. With a `history`, the top state
of an RNN over the words written before is added to h_t. There is no attention. END after `max_segment` words has a probability
like any other END, so a search that forces it there must count it.

Both sides drop their EOS: the encoder output has one position per source word, and the end of the last segment is the end of
the translation. An empty source gives an empty target with probability 1.

The encoder (`kind: columns`) has two columns of recurrent layers that alternate their direction from layer to layer.

    xˡ = RNNˡ(xˡ⁻¹) + xˡ⁻¹,   layer l of column c (both from 0) reads forwards if l + c is even
    m  = dropout(W [x of column 0 ; x of column 1])

If the width changes, the residual of the first layer has a bias-free map. Dropout also acts between the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from phraseloom.data.tensors import Batch
from phraseloom.errors import ModelError
from phraseloom.layers.attention.structure import Structure
from phraseloom.layers.embeddings import TokenEmbedding
from phraseloom.layers.feedforward import dropout
from phraseloom.layers.fertility import AS_TRAINED, Tempering
from phraseloom.layers.initialisation import initialise, xavier_uniform
from phraseloom.layers.packed import Packed, can_pack, expect_changes
from phraseloom.layers.recurrent import CELLS, Cell
from phraseloom.models.decoder import Memory
from phraseloom.models.encoder import Encoded
from phraseloom.models.phrases import PhraseLevels
from phraseloom.models.recurrent import backwards_order, in_order
from phraseloom.npmt.likelihood import Softmax, log_likelihood_of_rows, segmentations_of_rows
from phraseloom.npmt.rows import CellStates, Inputs, Job, ResidualCells, SegmentRows, Sentences
from phraseloom.npmt.sampled import sample
from phraseloom.npmt.segmentations import best_segmentation, token_log_probs
from phraseloom.options.model import ModelConfig
from phraseloom.options.segmental import ApproximationConfig, ColumnsEncoderConfig, SegmentalDecoderConfig
from phraseloom.outputs.softmax import LossSums, SoftmaxOutput


class ColumnsEncoder(nn.Module):
    """`columns`: the cells of both columns, bottom layer first; the output has size `width`."""

    structures: Sequence[Structure] = ()

    def __init__(self, columns: list[list[Cell]], *, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        first = columns[0][0]
        self.columns: Sequence[Sequence[Cell]] = nn.ModuleList(  # type: ignore[assignment]
            nn.ModuleList(cells) for cells in columns
        )
        same = first.input_width == first.width
        self.residuals: Sequence[nn.Module] = nn.ModuleList(  # type: ignore[assignment]
            nn.Identity() if same else nn.Linear(first.input_width, first.width, bias=False) for _ in columns
        )
        self.joined = nn.Linear(len(columns) * first.width, width, bias=False)
        initialise(self, xavier_uniform)
        self.dropout = dropout

    @property
    def layers(self) -> Any:
        """The cells of the first column, one per layer."""
        return self.columns[0]

    def forward(
        self,
        x_BSD: Tensor,
        lengths_B: Tensor | None,
        *,
        phrases: PhraseLevels | None = None,
        attention_weights: list[Tensor] | None = None,
    ) -> Encoded:
        """Embedded source and its real lengths (None if nothing is padded) → states (B, S, D).

        `phrases` must be None: the columns share no levels from which to make phrases.
        """
        assert phrases is None
        order = backwards_order(lengths_B, x_BSD)
        tops = []
        for number, (cells, residual) in enumerate(zip(self.columns, self.residuals, strict=True)):
            backwards, x = bool(number % 2), x_BSD
            for layer, cell in enumerate(cells):
                read = x if layer == 0 else dropout(x, self.dropout, self.training)
                output, _ = cell.run(in_order(read, order) if backwards else read)
                x = (in_order(output, order) if backwards else output) + (residual(read) if layer == 0 else read)
                backwards = not backwards
            tops.append(x)
        states_BSD = dropout(self.joined(torch.cat(tops, -1)), self.dropout, self.training)
        return Encoded(states_BSD.to(self.joined.weight.dtype))


class SegmentDecoder(nn.Module):
    """The network that writes segments, and the optional network that reads the words before."""

    cross_structures: tuple[()] = ()
    own_structures: tuple[()] = ()

    def __init__(self, cells: ResidualCells, history: ResidualCells | None) -> None:
        super().__init__()
        self.segment, self.history = cells, history


class Segments(NamedTuple):
    """The likeliest segmentation of each pair: the words that each source position writes (B, S), its log p (B,), log p summed
    over all segmentations (B,), and the posterior of each segment (B, S, C, X; `segmentations.py`)."""

    lengths_BS: Tensor
    log_p_B: Tensor
    marginal_B: Tensor
    posterior_BSCX: Tensor


class SegmentalModel(nn.Module):
    """NPMT. `target_embedding` and `output` have a row for every token of the target vocabulary, then for START and for END.

    `encoder`: an entry of ENCODERS of `models/build.py`. `max_segment`: the most words of a segment. `steps_together`: tokens
    that run together, which bounds the memory of the backward pass (None chooses by device). `approximation`: what training
    leaves out.
    """

    writes = "segments"
    phrases = None
    needs_phrases = False

    def __init__(
        self,
        *,
        source_embedding: TokenEmbedding,
        target_embedding: TokenEmbedding,
        encoder: Any,
        decoder: SegmentDecoder,
        output: SoftmaxOutput,
        max_segment: int = 6,
        steps_together: int | None = None,
        approximation: ApproximationConfig | None = None,
    ) -> None:
        super().__init__()
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        self.encoder, self.decoder, self.output = encoder, decoder, output
        self.max_segment, self.steps_together, self.approximation = max_segment, steps_together, approximation
        self.start_token, self.end_token = len(output.weight) - 2, len(output.weight) - 1

    def train(self, mode: bool = True) -> Self:
        """See `torch.nn.Module.train`. Training outdates the packed copies of weights that search has made."""
        if mode:
            expect_changes(self)
        return super().train(mode)

    @property
    def connects(self) -> bool:
        """Whether a segment also depends on the words before it."""
        return self.decoder.history is not None

    def encode(
        self,
        source_BS: Tensor,
        lengths_B: Tensor | None,
        phrase_sizes_BP: Tensor | None = None,
        *,
        tempering: Tempering = AS_TRAINED,
    ) -> Memory:
        """Source ids with EOS and their lengths (including EOS) → memory without EOS: states (B, S-1, D), lengths 0 … S-1.

        The states have at least one position, even if no source has a word; lengths are None if nothing is padded. There are
        no phrases and no gate: the last two arguments are not read.
        """
        words_B = source_BS.new_full((len(source_BS),), source_BS.shape[1]) if lengths_B is None else lengths_B
        words_B = words_B - 1
        source_BS = source_BS[:, : max(1, source_BS.shape[1] - 1)]
        real_B = None if bool((words_B == source_BS.shape[1]).all()) else words_B
        return Memory(self.encoder(self.source_embedding(source_BS), real_B)[0], real_B)

    def attention_maps(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ModelError: the model has no attention."""
        raise ModelError("a segmental model has no attention", hint="phraseloom analyse segments shows its segments")

    def history_start(self, rows: int) -> CellStates | None:
        """The history before the first word: its `output_RD` goes to `segment_start`. None if not `connects`."""
        history = self.decoder.history
        if history is None:
            return None
        state = history.start(self.output.weight.new_zeros(rows, history.width))
        self.history_step(torch.full((rows,), self.start_token, device=self.output.weight.device), state)
        return state

    def history_step(self, tokens_R: Tensor, state: CellStates) -> None:
        """Read one more written word in every row of the state."""
        history = self.decoder.history
        assert history is not None
        history.step(history.read(self._embedded(tokens_R)), state)

    def segment_start(self, states_RD: Tensor, history_RD: Tensor | None = None) -> CellStates:
        """The state before the START of a segment, for the encoder states of R source positions."""
        return self.decoder.segment.start(states_RD if history_RD is None else states_RD + history_RD)

    def segment_step(self, tokens_R: Tensor, state: CellStates) -> Tensor:
        """Feed one token to every row (START first): log p of the next, (R, V), over the vocabulary, START and END.

        The state is updated; it has `reorder(rows_R)`.
        """
        cells = self.decoder.segment
        return self.output.log_probs(cells.step(cells.read(self._embedded(tokens_R)), state))

    def _embedded(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.target_embedding(tokens[:, None])
        return embedded[:, 0]

    def forward(self, batch: Batch) -> LossSums:
        """-log p(y | x), summed over the pairs that can be segmented; `tokens` counts their tokens with EOS (same as `loss`).

        Pairs with more than `max_segment` target words per source word cannot, and add nothing.
        """
        job, inputs, softmax = self._rows(batch)
        log_p_B = log_likelihood_of_rows(job, inputs, softmax)
        possible_B = log_p_B != -torch.inf
        nll = -log_p_B.masked_fill(~possible_B, 0.0).sum()
        return LossSums(nll, nll.detach(), int((batch.target_lengths_B * possible_B).sum()))

    loss = forward

    def token_states(self, batch: Batch) -> dict[str, Tensor]:
        """The states of the encoder, (B, S-1, D), for a batch."""
        return {"encoder": self.encode(batch.source_BS, batch.source_lengths_B).states_BSD}

    def score(self, batch: Batch, *, tempering: Tempering = AS_TRAINED) -> Tensor:
        """log p of every target token given those before it, with EOS, (B, T); zero beyond the length. Without a gradient.

        Their sum is log p(y | x) over all segmentations; -inf at the token that makes a translation impossible.
        """
        with torch.no_grad():
            job, inputs, softmax = self._rows(batch, unfinished=True)
            scores, result = segmentations_of_rows(job, inputs, softmax)
            return token_log_probs(result, scores.words_BSCX, *job.sentences[:2])

    def can_segment(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """Whether pairs of these lengths (EOS not counted) can be segmented."""
        possible: np.ndarray = target_lengths <= source_lengths.astype(np.int64) * self.max_segment
        return possible

    def remark(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> str | None:
        """A remark on training pairs of these lengths (EOS not counted) if some cannot be segmented; otherwise None."""
        count = int((~self.can_segment(source_lengths, target_lengths)).sum())
        if not count:
            return None
        return (
            f"{count:,} of {len(target_lengths):,} pairs have more than {self.max_segment} target tokens for each source "
            "token: they cannot be segmented, and add nothing to the loss"
        )

    def segments(self, batch: Batch) -> Segments:
        """The segmentations of given translations; without a gradient."""
        with torch.no_grad():
            job, inputs, softmax = self._rows(batch)
            scores, result = segmentations_of_rows(job, inputs, softmax)
            log_p_B, lengths_BS = best_segmentation(scores.whole_BSCX, *job.sentences[:2])
            return Segments(lengths_BS, log_p_B, result.log_p_B, result.posterior_BSCX)

    def _rows(self, batch: Batch, *, unfinished: bool = False) -> tuple[Job, Inputs, Softmax]:
        memory = self.encode(batch.source_BS, batch.source_lengths_B)
        source_B, target_B = batch.source_lengths_B - 1, batch.target_lengths_B - 1
        positions = torch.arange(batch.target_out_BT.shape[1], device=target_B.device)
        words_N = batch.target_out_BT[positions < target_B[:, None]]
        left_out = (self.approximation if self.training else None) or ApproximationConfig()
        rows = SegmentRows.of(source_B, target_B, self.max_segment, unfinished=unfinished, band=left_out.band)
        cells, drops = self.decoder.segment, self.training and self.decoder.segment.dropout > 0
        device = words_N.device
        weight: Tensor = self.output.weight
        bias: Tensor | None = self.output.class_bias()
        end_token, asked_N = self.end_token, words_N
        if left_out.negatives is not None:
            tokens = torch.cat([words_N, words_N.new_tensor([self.start_token, end_token])])
            some = sample(tokens, len(weight), left_out.negatives, like=weight)
            if some is not None:
                weight, bias = some.weight(weight), some.bias(bias)
                asked_N, end_token = some.place_N[:-2], int(some.place_N[-1])
        on_gpu, mixed = device.type == "cuda", torch.is_autocast_enabled(device.type)
        job = Job(
            cells=cells,
            end_token=end_token,
            max_segment=self.max_segment,
            sentences=Sentences(source_B, target_B, asked_N),
            rows=rows,
            connects=self.connects,
            steps_together=self.steps_together or (2**17 if on_gpu else 2**13),
            seed=int(torch.randint(2**62, (1,))) if drops else None,
            mixed=torch.get_autocast_dtype(device.type) if mixed else None,
            negligible=left_out.posterior,
        )
        states_KD = memory.states_BSD[rows.sentence_K, rows.place_K]
        start = torch.full((1,), self.start_token, device=device)
        inputs = Inputs(
            states_KD,
            cells.read(self._embedded(words_N)),
            cells.read(self._embedded(start)),
            self._history(batch.target_out_BT, target_B, positions),
        )
        packed = Packed(weight, bias) if mixed is False and can_pack(weight) else None
        return job, inputs, Softmax(weight, bias, 2**12 if on_gpu else 2**8, packed)

    def _history(self, target_out_BT: Tensor, target_B: Tensor, positions: Tensor) -> Tensor | None:
        """The history vector at each cut, sentence by sentence, (N + B, D)."""
        history = self.decoder.history
        if history is None:
            return None
        start_B1 = torch.full_like(target_out_BT[:, :1], self.start_token)
        read_BT = torch.cat([start_B1, target_out_BT[:, :-1]], 1)
        return history.run(self.target_embedding(read_BT))[positions <= target_B[:, None]]


def columns_encoder(config: ModelConfig) -> ColumnsEncoder:
    """Build the encoder; an entry of ENCODERS."""
    options: Any = config.encoder
    assert isinstance(options, ColumnsEncoderConfig)
    cell, width = CELLS[options.cell], options.width or config.width // 2
    embedded = config.embedding_width or config.width
    columns = [
        [cell(input_width=width if layer else embedded, width=width) for layer in range(options.layers)]
        for _ in range(2)
    ]
    return ColumnsEncoder(columns, width=config.width, dropout=options.dropout)


def segmental_model(
    config: ModelConfig,
    *,
    source_embedding: TokenEmbedding,
    target_embedding: TokenEmbedding,
    encoder: nn.Module,
    output: SoftmaxOutput,
) -> SegmentalModel:
    """Build a segmental model; embeddings and output have rows for START and END."""
    options: Any = config.decoder
    assert isinstance(options, SegmentalDecoderConfig)
    target_embedding.dropout = 0.0  # dropout on the source only
    cell, width = CELLS[options.cell], config.width
    embedded = config.embedding_width or width

    def cells() -> ResidualCells:
        layers = [cell(input_width=width if layer else embedded, width=width) for layer in range(options.layers)]
        return ResidualCells(layers, embedding_width=embedded, dropout=options.dropout)

    return SegmentalModel(
        source_embedding=source_embedding,
        target_embedding=target_embedding,
        encoder=encoder,
        decoder=SegmentDecoder(cells(), cells() if options.connect else None),
        output=output,
        max_segment=options.max_segment,
        approximation=options.approximation,
    )
