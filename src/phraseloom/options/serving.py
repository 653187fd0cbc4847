"""Every limit of the server in one place, with the help of its option. Declared without torch and h11."""

from __future__ import annotations

from pydantic import Field, model_validator

from phraseloom.config import Config
from phraseloom.options.decoding import MAX_BEAM


class ServingConfig(Config):
    """What a client may ask for, how long it may take, and how much may wait. Times are in seconds."""

    max_body_bytes: int = Field(2**20, ge=1, le=2**30, description="Largest request body, in bytes.")
    max_header_bytes: int = Field(16 * 1024, ge=1024, le=2**20, description="Largest head of a request, in bytes.")
    max_texts: int = Field(64, ge=1, le=100_000, description="Most texts in a request.")
    max_characters: int = Field(5_000, ge=1, le=10_000_000, description="Most characters in a text.")
    max_prefix_characters: int = Field(1_000, ge=0, le=1_000_000, description="Most characters in a prefix.")
    max_tokens: int = Field(
        256, ge=1, le=1_000_000, description="Longer texts (in subwords) are cropped or split, and the reply says so."
    )
    max_phrases: int = Field(16, ge=0, le=1_000, description="Most required and forbidden phrases per text.")
    max_phrase_characters: int = Field(200, ge=1, le=100_000, description="Most characters in such a phrase.")
    max_terms: int = Field(256, ge=0, le=100_000, description="Most terms in a request.")
    max_prefix_tokens: int = Field(256, ge=0, le=1_000_000, description="Most subwords in a prefix.")
    max_beam: int = Field(10, ge=1, le=MAX_BEAM, description="Largest beam that a request may ask for.")
    max_n_best: int = Field(10, ge=1, le=MAX_BEAM, description="Most translations per text.")
    max_mbr: int = Field(
        32, ge=0, le=MAX_BEAM, description="Most samples per text for minimum Bayes risk; 0: none is offered."
    )
    explain_texts: int = Field(4, ge=1, le=1000, description="Most texts in one explanation.")
    explain_tokens: int = Field(128, ge=1, le=10_000, description="Most subwords that an explanation shows per side.")

    read_seconds: float = Field(10.0, gt=0.0, le=3600.0, description="Longest pause within a request or a reply.")
    request_seconds: float = Field(30.0, gt=0.0, le=86_400.0, description="Time limit for receiving a whole request.")
    idle_seconds: float = Field(60.0, gt=0.0, le=86_400.0, description="Longest pause between two requests.")
    send_seconds: float = Field(30.0, gt=0.0, le=86_400.0, description="Time limit for sending 1 MiB of a reply.")
    linger_seconds: float = Field(
        2.0, ge=0.0, le=60.0, description="Time for a refused client to read the error before the connection closes."
    )

    max_connections: int = Field(
        512,
        ge=1,
        le=1_000_000,
        description="Most simultaneous connections. When there are more, the one that has been silent longest is closed.",
    )
    max_buffered_bytes: int = Field(
        64 * 2**20, ge=2**16, le=2**36, description="Most bytes of unfinished requests and replies together."
    )
    queue_texts: int = Field(
        256,
        ge=1,
        le=1_000_000,
        description="Texts that may wait. When the queue is full, clients get 503 with Retry-After.",
    )
    explain_waiting: int = Field(8, ge=1, le=10_000, description="Explanations that may wait.")
    batch_texts: int = Field(64, ge=1, le=100_000, description="Texts per batch.")
    batch_steps: int = Field(
        100_000,
        ge=1,
        le=1_000_000_000,
        description="Most search steps in a batch (output length times beam size).",
    )
    batch_seconds: float = Field(
        20.0,
        gt=0.0,
        le=86_400.0,
        description="Time limit of a batch. After it, its requests are translated one by one.",
    )
    gather_seconds: float = Field(
        0.005, ge=0.0, le=10.0, description="How long an idle worker waits for more texts for its batch."
    )
    answer_seconds: float = Field(60.0, gt=0.0, le=86_400.0, description="Time limit for a waiting or running request.")
    grace_seconds: float = Field(
        30.0, ge=0.0, le=86_400.0, description="Time to finish running requests after SIGTERM."
    )

    @model_validator(mode="after")
    def _a_request_fits(self) -> ServingConfig:
        if self.max_texts > self.queue_texts:
            raise ValueError(f"max_texts {self.max_texts} is above queue_texts {self.queue_texts}")
        if self.max_body_bytes > self.max_buffered_bytes:
            raise ValueError(
                f"max_body_bytes {self.max_body_bytes} is above max_buffered_bytes {self.max_buffered_bytes}"
            )
        return self
