"""The OpenAPI 3.1 description of the server, for `GET /openapi.json`, from the fields of requests and replies below.

The classes describe; `App` reads the fields with the limits of the server (`serving/protocol.py`), and a test compares the two.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import models_json_schema

from phraseloom import __version__
from phraseloom.config import Config
from phraseloom.options.decoding import MbrMetric, Seed, Temperature, TopK, TopP
from phraseloom.options.serving import ServingConfig

__all__ = ["REQUESTS", "ExplainRequest", "TranslateRequest", "description"]

Texts = str | list[str]


class TranslateRequest(Config):
    """Texts to translate."""

    text: Texts = Field(description="A text or a list of texts, one line each.")
    model: str | None = Field(None, description="Name of a model; default: the first.")
    prefix: Texts | None = Field(None, description="Forced prefixes, one for each text.")
    tree: Texts | None = Field(None, description="Parse trees in brackets, for models that read them.")
    beam: int | None = Field(None, ge=1, description="Beam size.")
    n_best: int | None = Field(None, ge=1, description="Translations per text.")
    alignments: bool = Field(False, description="Add word and phrase links.")
    long_lines: Literal["crop", "split"] | None = Field(None, description="What to do with long texts.")
    split_sentences: bool | None = Field(
        None, description="Translate each sentence of a text on its own; default: as the model does."
    )
    tag: Texts | None = Field(None, description="Tags of the texts, for models with tags, such as <2de>.")
    constraints: dict[str, Any] | list[dict[str, Any] | None] | None = Field(
        None, description="Phrases that each translation must (include) and must not contain (exclude)."
    )
    terms: dict[str, str] | None = Field(
        None,
        description="Target phrases by source phrase: a text with the source phrase gets a translation with the target "
        "phrase. Takes the place of the server's own table; {} for no terms.",
    )
    sample: bool | None = Field(None, description="Sample translations instead of searching for the best.")
    temperature: Temperature | None = None
    top_k: TopK = None
    top_p: TopP = None
    seed: Seed | None = None
    mbr: int | None = Field(None, ge=0, description="Samples per text for minimum Bayes risk; 0: off.")
    mbr_metric: MbrMetric | None = Field(None, description="Similarity for mbr.")
    no_repeat_ngram_size: int | None = Field(
        None, ge=0, description="Never write an n-gram of this size twice; 0: off."
    )
    stream: bool = Field(
        False, description="Reply with JSON lines while the text is written; one text, greedy or one sample."
    )


class TranslationReply(Config):
    """The translation of one text; further fields as in `phraseloom translate --output json`."""

    text: str
    score: float | None
    log_prob: float | None
    tokens: list[str]
    words: list[str]
    blank: bool
    cropped: bool
    parts: int
    hit_max_length: bool
    alignment: list[list[int]] | None = None
    alternatives: list[dict[str, Any]] = Field([])


class TranslateReply(Config):
    """One translation for each text, in order."""

    model: str
    translations: list[TranslationReply]
    warnings: list[str] = Field(description="A sentence for each text that was cropped, split or cut short.")


class ExplainRequest(Config):
    """Texts to explain."""

    text: Texts = Field(description="A text or a list of texts, one line each.")
    models: list[str] | None = Field(None, description="One or two names; default: the first model.")
    target: Texts | None = Field(None, description="Translations to explain instead of the models' own.")
    reference: Texts | None = Field(None, description="References shown next to the translations.")
    prefix: Texts | None = Field(None, description="Forced prefixes, one for each text.")
    tree: Texts | None = Field(None, description="Parse trees in brackets, for models that read them.")
    tag: Texts | None = Field(None, description="Tags of the texts, for models with tags, such as <2de>.")
    beam: int | None = Field(None, ge=1, description="Beam size.")


class RefusedRequest(Config):
    """Why a request was refused."""

    status: int
    reason: str
    message: str


class ProblemReply(Config):
    """The reply to a refused request."""

    error: RefusedRequest


REQUESTS: dict[str, type[Config]] = {"/translate": TranslateRequest, "/explain": ExplainRequest}
GETS = {
    "/": ("The live page", "text/html"),
    "/health": ("Status, models, texts that wait", "application/json"),
    "/models": ("The models and the limits of the server", "application/json"),
    "/metrics": ("Counts in the text format of Prometheus", "text/plain"),
    "/openapi.json": ("This description", "application/json"),
}


def description(config: ServingConfig, models: list[str]) -> dict[str, Any]:
    """The document; the limits of `config` and the names of the `models` are in the schemas."""
    classes = (TranslateRequest, TranslateReply, ExplainRequest, ProblemReply)
    _, schema = models_json_schema(
        [(kind, "validation") for kind in classes], ref_template="#/components/schemas/{model}"
    )
    schemas = schema["$defs"]
    for name, most in (("TranslateRequest", config.max_texts), ("ExplainRequest", config.explain_texts)):
        properties = schemas[name]["properties"]
        for own in properties["text"]["anyOf"]:
            inner = own.get("items", own)
            inner["maxLength"] = config.max_characters
            if "items" in own:
                own["maxItems"] = most
        properties["beam"]["anyOf"][0]["maximum"] = config.max_beam
    schemas["TranslateRequest"]["properties"]["n_best"]["anyOf"][0]["maximum"] = config.max_n_best
    schemas["TranslateRequest"]["properties"]["terms"]["anyOf"][0] |= {
        "maxProperties": config.max_terms,
        "propertyNames": {"maxLength": config.max_phrase_characters},
        "additionalProperties": {"type": "string", "maxLength": config.max_phrase_characters},
    }
    schemas["TranslateRequest"]["properties"]["model"]["anyOf"][0]["enum"] = models
    paths: dict[str, Any] = {
        path: {"get": {"summary": about, "responses": {"200": {"description": about, "content": {kind: {}}}}}}
        for path, (about, kind) in GETS.items()
    }
    problem = {"content": _json("ProblemReply")}
    refused = {
        "400": {"description": "An invalid request; the message says why.", **problem},
        "503": {"description": "Too busy, not done in time, or stopping; see Retry-After.", **problem},
    }
    for path, summary, reply in (
        ("/translate", "Translate texts", {"content": _json("TranslateReply")}),
        ("/explain", "Explain translations", {"content": {"application/json": {}}}),
    ):
        body = {"required": True, "content": _json(REQUESTS[path].__name__)}
        responses = {"200": {"description": summary, **reply}, **refused}
        paths[path] = {"post": {"summary": summary, "requestBody": body, "responses": responses}}
    info = {"title": "phraseloom", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
