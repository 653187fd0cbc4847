"""What the server answers: the page, translations, explanations, its models and its health (docs/serving.md).

The live page: type, translate, keep the first words, sample, stream, constrain, look inside. Its script is
`report/assets/serve.js`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, get_args

from phraseloom import __version__
from phraseloom.config import bounds, validate
from phraseloom.errors import ConfigError, DataError, UsageError
from phraseloom.options.decoding import DecodingConfig, LongLines, MbrMetric
from phraseloom.options.serving import ServingConfig
from phraseloom.report.explain_page import SCRIPTS, STYLES
from phraseloom.report.markup import asset, page
from phraseloom.serving.batcher import Batcher, ItemError, WorkQueue
from phraseloom.serving.constraints import constraints_of, terms_of
from phraseloom.serving.message import JSON_TYPE, Problem, Reply, Request, StreamedReply, json_reply
from phraseloom.serving.metrics import CONTENT_TYPE, ServerMetrics
from phraseloom.serving.models import ExplainKey, Models, RequestText, Sources, StreamKey, StreamText, TranslateKey
from phraseloom.serving.openapi import description
from phraseloom.serving.protocol import Fields, read_object

logger = logging.getLogger(__name__)

Route = Callable[[Request], Awaitable[Reply | StreamedReply]]
LONG_LINES: tuple[LongLines, ...] = get_args(LongLines)
OF_SAMPLES = ("temperature", "top_k", "top_p", "seed")
UTF_8 = ("utf-8", "utf8")
PAGE_POLICY = "frame-ancestors 'none'"


class App:
    """Answers requests. `hosts`: the names under which clients may call the server; None if any name will do.

    A page of another site cannot use a server on this machine: its posts are refused by origin and type, and a host name
    that it points at this machine is refused by host.
    """

    def __init__(
        self,
        models: Models,
        batcher: Batcher,
        config: ServingConfig,
        page: bytes,
        *,
        hosts: Sequence[str] | None = None,
    ) -> None:
        self._models, self._batcher, self._config, self._page = models, batcher, config, page
        self._hosts = None if hosts is None else {h.lower() for h in hosts}
        self._texts = WorkQueue("translate", config.queue_texts, config.batch_texts)
        self._explanations = WorkQueue("explain", config.explain_waiting, 1)
        self._number = itertools.count()
        self._start = time.monotonic()
        self.log_requests = False
        self._routes: dict[str, dict[str, Route]] = {
            "/": {"GET": self._show_page},
            "/health": {"GET": self._health},
            "/models": {"GET": self._about_models},
            "/metrics": {"GET": self._show_metrics},
            "/openapi.json": {"GET": self._describe},
            "/translate": {"POST": self._translate},
            "/explain": {"POST": self._explain},
        }
        self._metrics = ServerMetrics([*self._routes])

    async def handle(self, request: Request) -> Reply | StreamedReply:
        """The reply; raises nothing but cancellation. An internal error is logged under the number that the client gets."""
        try:
            return await self._route(request)
        except Problem as problem:
            return problem.reply()
        except Exception as error:
            return _failed(request, error)

    def record(self, request: Request, size: int, reply: Reply | StreamedReply, seconds: float) -> None:
        """Count a reply, and log it with `log_requests`; `size` is that of the body, which a refused request lacks."""
        self._metrics.observe(request.path, reply.status, seconds)
        if self.log_requests:
            out = f"{len(reply.body)} out" if isinstance(reply, Reply) else "a stream out"
            sizes = f"{size} bytes in, {out}"
            logger.info("%s %s %d, %s, %.1f ms", request.method, request.path[:80], reply.status, sizes, 1000 * seconds)

    async def _route(self, request: Request) -> Reply | StreamedReply:
        self._check_host(request)
        methods = self._routes.get(request.path)
        if methods is None:
            raise Problem(404, f"there is nothing here; paths: {', '.join(self._routes)}")
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            allowed = ", ".join([*methods, "HEAD"] if "GET" in methods else methods)
            raise Problem(405, f"{request.path} takes {allowed}", headers={"Allow": allowed})
        return await route(request)

    def _check_host(self, request: Request) -> None:
        host = request.headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self._hosts is not None and name not in self._hosts:
            raise Problem(421, "this server does not go by that name; start it with --allow-host NAME")
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise Problem(403, "pages of other sites cannot use this server")

    async def _show_page(self, request: Request) -> Reply:
        return Reply(200, self._page, "text/html", {"Content-Security-Policy": PAGE_POLICY})

    async def _about_models(self, request: Request) -> Reply:
        return json_reply({"models": self._models.about(), "limits": self._config.model_dump()})

    async def _health(self, request: Request) -> Reply:
        batcher = self._batcher
        alive = not batcher.closed
        return json_reply(
            {
                "status": "ok" if alive else "stopping",
                "version": __version__,
                "models": self._models.names,
                "uptime_seconds": round(time.monotonic() - self._start, 3),
                "waiting": batcher.waiting,
                "answered": batcher.answered,
                "batches": batcher.batches,
                "busy_seconds": round(batcher.busy_seconds, 3),
            },
            status=200 if alive else 503,
        )

    async def _show_metrics(self, request: Request) -> Reply:
        text = self._metrics.text(self._batcher, time.monotonic() - self._start)
        return Reply(200, text.encode(), CONTENT_TYPE)

    async def _describe(self, request: Request) -> Reply:
        return json_reply(description(self._config, self._models.names))

    async def _translate(self, request: Request) -> Reply | StreamedReply:
        fields = _fields(request)
        texts = self._text_field(fields, "text", required=True) or []
        name = fields.choice("model", self._models.names) or self._models.names[0]
        prefixes, trees = self._beside(fields, len(texts), [name])
        beam, n_best = self._capped(fields, "beam"), self._capped(fields, "n_best")
        alignments, stream = bool(fields.flag("alignments")), bool(fields.flag("stream"))
        long_lines = fields.choice("long_lines", LONG_LINES)
        constraints = constraints_of(fields, len(texts), self._config)
        terms = terms_of(fields, self._config)
        translator = self._models[name]
        options = self._sampling(fields, translator.config)
        tags = _tags(fields, {name: translator.tokenizer.tags})
        split = fields.flag("split_sentences")
        fields.finish()
        if terms is None and (terms := self._models.terms(name)) is not None:
            _check_own_terms(options, translator.config, stream=stream, split=bool(split))
        has_terms = terms is not None and bool(terms.terms)
        if stream:
            _check_stream(texts, beam, n_best, options, constraints is not None or has_terms)
            beam = n_best = 1
        n_best = n_best or (translator.config.n_best if beam is None else min(beam, translator.config.n_best))
        beam = beam or translator.config.beam
        try:
            own = {"sample": translator.config.sample, "mbr": 0 if stream else translator.config.mbr}
            validate(DecodingConfig, {"beam": beam, "n_best": n_best, **own, **options})
        except ConfigError as error:
            raise Problem(400, error.what) from error
        if alignments and not translator.can_align:
            raise Problem(400, f"alignments: the model {name} attends to no source tokens and has none")
        is_whole = any(
            (prefixes is not None, trees is not None, constraints is not None, has_terms, stream, n_best > 1)
        )
        if split and is_whole:
            raise Problem(400, "split_sentences: not with prefix, tree, constraints, terms, stream or n_best above 1")
        if split is None:
            split = translator.config.split_sentences and not is_whole
        if split and (why := self._models.cannot_split(name)):
            raise Problem(400, f"split_sentences: {why}")
        seed = options.pop("seed", None)
        if stream:
            options["mbr"] = 0
        long_lines, own_tags = long_lines or translator.config.long_lines, tuple(tags or translator.config.tags)
        key = TranslateKey(name, beam, n_best, long_lines, alignments, tuple(sorted(options.items())), own_tags, split)
        blank = [""] * len(texts)
        beside = zip(
            texts, prefixes or blank, trees or blank, constraints or itertools.repeat(None, len(texts)), strict=True
        )
        table = terms if has_terms else None
        items = [RequestText(*of_text, seed, number, table) for number, of_text in enumerate(beside)]
        size = sum(len(item.text.encode()) + len(item.prefix.encode()) for item in items)
        if stream:
            return await self._stream(request, key, items[0], size)
        translations = await self._batcher.submit(self._texts, key, items, size=size)
        self._metrics.translated(name, len(texts), sum(len(t["tokens"]) for t in translations))
        warnings = self._warnings(translations, name)
        return json_reply({"model": name, "translations": translations, "warnings": warnings})

    def _sampling(self, fields: Fields, config: DecodingConfig) -> dict[str, Any]:
        """The fields of sampling, minimum Bayes risk and repetition that a request has; `DecodingConfig` checks them."""
        values: dict[str, Any] = {"sample": fields.flag("sample"), "mbr": self._capped(fields, "mbr")}
        values |= {name: fields.number(name) for name in (*OF_SAMPLES, "no_repeat_ngram_size")}
        values["mbr_metric"] = fields.choice("mbr_metric", get_args(MbrMetric))
        options = {name: value for name, value in values.items() if value is not None}
        if not options.get("sample", config.sample) and not options.get("mbr", config.mbr):
            for name in (*OF_SAMPLES, "mbr_metric"):
                if name in options:
                    raise Problem(400, f"{name}: only samples have it; add sample: true or mbr")
        return options

    async def _stream(self, request: Request, key: TranslateKey, item: RequestText, size: int) -> Reply | StreamedReply:
        """JSON lines: one for each piece of text, then one with the whole translation or with an error."""
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[str | None]()

        def send(piece: str) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        stream = StreamKey(key, next(self._number))
        submitted = self._batcher.submit(self._texts, stream, [StreamText(item, send)], size=size)
        work = asyncio.ensure_future(submitted)
        work.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            first = await pieces.get()
        except asyncio.CancelledError:
            work.cancel()
            raise
        if first is None and work.exception() is not None:
            await work  # an error before the first piece is an ordinary reply
        return StreamedReply(self._stream_lines(request, key.model, first, pieces, work), work.cancel)

    async def _stream_lines(
        self,
        request: Request,
        name: str,
        first: str | None,
        pieces: asyncio.Queue[str | None],
        work: asyncio.Future[list[Any]],
    ) -> AsyncGenerator[bytes, None]:
        piece = first
        while piece is not None:
            while not pieces.empty() and (more := pieces.get_nowait()) is not None:
                piece += more
            yield json_reply({"piece": piece}).body
            piece = None if work.done() and pieces.empty() else await pieces.get()
        try:
            translations = await work
        except Problem as problem:
            yield problem.reply().body
        except Exception as error:
            yield _failed(request, error).body
        else:
            self._metrics.translated(name, 1, len(translations[0]["tokens"]))
            last = {"model": name, "translation": translations[0], "warnings": self._warnings(translations, name)}
            yield json_reply(last).body

    def _warnings(self, translations: Sequence[dict[str, Any]], name: str) -> list[str]:
        """One sentence for each text that was cropped, split or cut, or does not meet its constraints."""
        limit = min(self._models[name].config.max_input_tokens, self._config.max_tokens)
        texts = []
        for number, translation in enumerate(translations, 1):
            if translation["cropped"]:
                texts.append(f"text {number} is longer than max_tokens = {limit} subwords: its end was left out")
            if translation["parts"] > 1:
                texts.append(
                    f"text {number} is longer than max_tokens = {limit} subwords: translated in {translation['parts']} parts"
                )
            if translation["hit_max_length"]:
                texts.append(f"the translation of text {number} reached the maximal length and may be incomplete")
            if translation.get("unmet"):
                texts.append(f"the translation of text {number} does not meet its constraints")
        return texts

    async def _explain(self, request: Request) -> Reply:
        fields, models = _fields(request), self._models
        texts = self._text_field(fields, "text", required=True, most="explain_texts") or []
        names = fields.choices("models", models.names, most=models.most_explained) or models.names[:1]
        targets = self._matching(fields, "target", len(texts), "max_characters")
        references = self._matching(fields, "reference", len(texts), "max_characters")
        prefixes, trees = self._beside(fields, len(texts), names)
        beam = self._capped(fields, "beam")
        tags = _tags(fields, {name: models[name].tokenizer.tags for name in names})
        fields.finish()
        if targets is not None and prefixes is not None:
            raise Problem(400, "prefix: a target is forced as a whole, give one of the two")
        key = ExplainKey(tuple(names), beam, next(self._number), tuple(tags or ()))
        reply: Reply
        [reply] = await self._batcher.submit(
            self._explanations, key, [Sources(texts, targets, references, prefixes, trees)]
        )
        return reply

    def _beside(self, fields: Fields, count: int, names: Sequence[str]) -> tuple[list[str] | None, list[str] | None]:
        """The prefix and the parse tree of each text; None if the request has none."""
        prefixes = self._matching(fields, "prefix", count, "max_prefix_characters")
        trees = self._matching(fields, "tree", count, "max_characters")
        tree_models = [name for name in names if self._models.needs_trees(name)]
        if trees is None and tree_models:
            raise Problem(400, f"tree is missing: the model {tree_models[0]} reads phrases of parse trees in brackets")
        if trees is not None and not tree_models:
            raise Problem(400, f"tree: the model {names[0]} reads no parse trees")
        return prefixes, trees

    def _matching(self, fields: Fields, name: str, count: int, limit: str) -> list[str] | None:
        """The texts of a field that must have as many as the field `text`."""
        texts = self._text_field(fields, name, characters=limit)
        if texts is not None and len(texts) != count:
            raise Problem(400, f"{name}: {len(texts)} for {count} texts")
        return texts

    def _capped(self, fields: Fields, name: str) -> int | None:
        """A field of `DecodingConfig`: at least its least value, at most the limit of this server, `max_` and its name."""
        least, _ = bounds(DecodingConfig, name)
        limit = sys.intern(f"max_{name}")  # Python's cache of attributes keeps every other string that it is asked for
        return fields.integer(name, least=least, cap=getattr(self._config, limit), cap_name=limit)

    def _text_field(
        self,
        fields: Fields,
        name: str,
        *,
        required: bool = False,
        most: str = "max_texts",
        characters: str = "max_characters",
    ) -> list[str] | None:
        return fields.texts(
            name,
            most=getattr(self._config, most),
            most_name=most,
            characters=getattr(self._config, characters),
            characters_name=characters,
            required=required,
        )


def _check_stream(
    texts: Sequence[str], beam: int | None, n_best: int | None, options: dict[str, Any], is_constrained: bool
) -> None:
    """Problem 400 for a request that cannot be streamed."""
    if len(texts) != 1:
        raise Problem(400, f"stream: one text at a time, not {len(texts)}")
    for name, value in (("beam", beam), ("n_best", n_best)):
        if value is not None and value > 1:
            raise Problem(400, f"stream: {name} {value} has no final words before its end; leave it out")
    if options.get("mbr"):
        raise Problem(400, "stream: mbr compares whole translations; leave it out")
    if is_constrained:
        what = "constraints and terms need beam search, which has no final words before its end"
        raise Problem(400, f"stream: {what}; leave them out")


def _check_own_terms(options: dict[str, Any], config: DecodingConfig, *, stream: bool, split: bool) -> None:
    """Problem 400 for a request that cannot keep the terms of the server."""
    on = {"stream": stream, "split_sentences": split, "sample": options.get("sample", config.sample)}
    on |= {"mbr": options.get("mbr", config.mbr), "no_repeat_ngram_size": options.get("no_repeat_ngram_size")}
    for name in (name for name, value in on.items() if value):
        raise Problem(
            400, f"{name}: this server has a table of terms, which needs beam search; send terms: {{}} to do without"
        )


def _fields(request: Request) -> Fields:
    """The fields of a JSON body; Problem 415 for a body of another type, compressed, or not in UTF-8."""
    sent, *parameters = request.headers.get("content-type", "").lower().split(";")
    if sent.strip() != JSON_TYPE or request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, f"send JSON as it is, with the header Content-Type: {JSON_TYPE}")
    for name, _, value in (parameter.partition("=") for parameter in parameters):
        if name.strip() == "charset" and value.strip(' \t"') not in UTF_8:
            raise Problem(415, f"send JSON in UTF-8: the header Content-Type says charset {value.strip()[:40]}")
    return Fields(read_object(request.body))


def _tags(fields: Fields, models: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The tags of a request: one or a list of those that all its models have. `models`: the tags of each."""
    limits: dict[str, Any] = {"characters": 64, "characters_name": "the length of a tag"}
    most = max(1, *map(len, models.values()))
    tags = fields.texts("tag", most=most, most_name="the tags of the model", **limits)
    for tag, (name, known) in itertools.product(tags or (), models.items()):
        if tag not in known:
            owned = f"its tags: {', '.join(known)}" if known else "it has no tags"
            raise Problem(400, f"tag: the model {name} does not know {tag}; {owned}")
    return tags


def _failed(request: Request, error: Exception) -> Reply:
    """400 if the model refused a text, else 500 with the number of the error in the log."""
    number = error.number if isinstance(error, ItemError) else 1
    cause = error.error if isinstance(error, ItemError) else error
    if isinstance(cause, UsageError | DataError):
        return Problem(400, f"text {number}: {cause.what}").reply()
    mark = uuid.uuid4().hex[:12]
    logger.error("error %s in %s %s", mark, request.method, request.path[:80], exc_info=cause)
    return Problem(500, f"an error of the server, number {mark} in its log").reply()


def live_page() -> str:
    """The page as one HTML document; it contacts no other server."""
    return page("phraseloom", asset("serve.html"), styles=(*STYLES, "serve.css"), scripts=(*SCRIPTS, "serve.js"))
