"""Every limit of the server in one place. Declared without torch and without h11."""

from __future__ import annotations

from pydantic import Field, model_validator

from phraseloom.config import Config


class ServingConfig(Config):
    """What a client may ask for, how long it may take, and how much may wait. Times are seconds.

    A request: `max_body_bytes` of its body (declared, and counted while it is read), `max_header_bytes` of its head,
    `max_texts` of one request, `max_characters` of a text or tree, `max_prefix_characters` of a prefix, `max_beam`,
    `max_n_best`. `max_tokens`: a text of more subwords is cropped or split, and the reply says so. `max_prefix_tokens`:
    subwords of a prefix. `explain_texts`: texts of one explanation, `explain_tokens`: subwords of each side that it shows.

    A client: `read_seconds` between two pieces of a request, `request_seconds` from its first byte to its last,
    `idle_seconds` between two requests of a connection, `send_seconds` in which a client takes 1 MiB of a reply (and
    `read_seconds` in which it takes 64 KiB), `linger_seconds` in which a refused client can read why.

    Together: `max_connections` open at once (the one that has kept us waiting longest makes room for a new one),
    `max_buffered_bytes` of bodies and replies that are neither read nor sent to the end, `queue_texts` waiting for the
    model, `explain_waiting` explanations waiting, `batch_texts` translated together, `gather_seconds` that an idle
    worker waits for more of them, `batch_steps` of search in one batch (a step extends one hypothesis by one subword, so
    a text takes its beam times the longest output that its model allows), `batch_seconds` until a batch that is not done
    is ended, `answer_seconds` until a request that is not done is given up, `grace_seconds` for the requests under way
    when the server is told to stop.
    """

    max_body_bytes: int = Field(2**20, ge=1, le=2**30)
    max_header_bytes: int = Field(16 * 1024, ge=1024, le=2**20)
    max_texts: int = Field(64, ge=1, le=100_000)
    max_characters: int = Field(5_000, ge=1, le=10_000_000)
    max_prefix_characters: int = Field(1_000, ge=0, le=1_000_000)
    max_tokens: int = Field(256, ge=1, le=1_000_000)
    max_prefix_tokens: int = Field(256, ge=0, le=1_000_000)
    max_beam: int = Field(10, ge=1, le=1000)
    max_n_best: int = Field(10, ge=1, le=1000)
    explain_texts: int = Field(4, ge=1, le=1000)
    explain_tokens: int = Field(128, ge=1, le=10_000)

    read_seconds: float = Field(10.0, gt=0.0, le=3600.0)
    request_seconds: float = Field(30.0, gt=0.0, le=86_400.0)
    idle_seconds: float = Field(60.0, gt=0.0, le=86_400.0)
    send_seconds: float = Field(30.0, gt=0.0, le=86_400.0)
    linger_seconds: float = Field(2.0, ge=0.0, le=60.0)

    max_connections: int = Field(512, ge=1, le=1_000_000)
    max_buffered_bytes: int = Field(64 * 2**20, ge=2**16, le=2**36)
    queue_texts: int = Field(256, ge=1, le=1_000_000)
    explain_waiting: int = Field(8, ge=1, le=10_000)
    batch_texts: int = Field(64, ge=1, le=100_000)
    batch_steps: int = Field(100_000, ge=1, le=1_000_000_000)
    batch_seconds: float = Field(20.0, gt=0.0, le=86_400.0)
    gather_seconds: float = Field(0.005, ge=0.0, le=10.0)
    answer_seconds: float = Field(60.0, gt=0.0, le=86_400.0)
    grace_seconds: float = Field(30.0, ge=0.0, le=86_400.0)

    @model_validator(mode="after")
    def _a_request_fits(self) -> ServingConfig:
        if self.max_texts > self.queue_texts:
            raise ValueError(f"max_texts {self.max_texts} is above queue_texts {self.queue_texts}")
        if self.max_body_bytes > self.max_buffered_bytes:
            raise ValueError(
                f"max_body_bytes {self.max_body_bytes} is above max_buffered_bytes {self.max_buffered_bytes}"
            )
        return self
