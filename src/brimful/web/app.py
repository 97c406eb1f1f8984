"""The routes of the page, and what guards them. Computes nothing: ``worker`` does, in ``pool``.

Whoever asks is a stranger: the Host header is checked against DNS rebinding, other sites may open
the page and nothing else, every question is bounded in size and time, and a job is ended when its
asker has gone (other questions are finished, for nobody). What is traced or fetched for a question
is in a folder of this server's own, which goes when it ends.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from brimful.errors import BrimfulError, InputError
from brimful.text.escaping import json_text, one_line
from brimful.web.page import ASSETS, accuracy_page, asset, main_page
from brimful.web.pool import BusyError, Event, Kept, Pool
from brimful.web.state import HUB, State, fields_of, read_state
from brimful.web.words import Words, language_of, words_of

LOCAL_HOSTS = ("localhost", "127.0.0.1")
STAGES = ("tensors", "replayed", "whole")
VERBS = ("plan", "simulate", "estimate")
MOST_BODY_BYTES = 96 * 1024
"""Of a question; a pasted config.json is the most of it."""
_ASKER_EVERY_S = 0.25
"""How often it is looked whether whoever asked is still there."""
_QUICK = Kept(size=2, limit_s=10, most_questions=5000, nice=0, ends_late=False)
_REPLAYS = Kept(size=2, limit_s=20, most_questions=400, nice=5, ends_late=False)
_SLOW = Kept(size=1, limit_s=30, most_questions=500, nice=5, ends_late=False)
_JOBS = Kept(size=2, limit_s=300, most_questions=20, nice=5, ends_late=True)
_PREFIX = "brimful-web-"
_CACHES = ("BRIMFUL_CACHE", "HF_HUB_CACHE")
"""Where traces and files of the hub are kept: for a page neither of its host nor for longer."""
_BUSY = "too many questions wait here already; ask again in a moment"
_LATE = "this took longer than a question may take here; ask it in a terminal"
_GONE = "the process that answered this has ended; ask again, or in a terminal"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors {}"
)


class Pools(NamedTuple):
    """The processes that answer.

    Attributes:
        quick: What has to be drawn at once.
        replays: What follows it, and must not hold it up.
        slow: What takes up to seconds.
        jobs: What is started, shows how far it is, and can be cancelled.
    """

    quick: Pool
    replays: Pool
    slow: Pool
    jobs: Pool


def make_app(allowed_hosts: Sequence[str] = (), *, framed_by: Sequence[str] = ()) -> Starlette:
    """Make the application.

    ``allowed_hosts``: names by which it may be reached besides loopback; ``*.name`` is any below.
    ``framed_by``: origins that may show the page in a frame.
    """
    pools = Pools(Pool(_QUICK), Pool(_REPLAYS), Pool(_SLOW), Pool(_JOBS))

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
            own = {name: str(Path(folder) / name.lower()) for name in _CACHES}
            for pool in pools:
                pool.begin(own)
            yield
            for pool in pools:
                await pool.close()

    app = Starlette(
        routes=_ROUTES,
        lifespan=lifespan,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[*LOCAL_HOSTS, *allowed_hosts],
                       www_redirect=False),
            Middleware(_Guard, framed_by=tuple(framed_by)),
        ],
    )  # fmt: skip
    app.state.pools = pools
    return app


class _Guard:
    """Refuses what other sites ask through a browser, and what is too large; adds headers."""

    def __init__(self, app: ASGIApp, framed_by: tuple[str, ...]) -> None:
        self._app = app
        self._opened_as = {"document", *(("iframe",) if framed_by else ())}
        policy = {"Content-Security-Policy": _POLICY.format(" ".join(framed_by) or "'none'")}
        self._headers = {**_HEADERS, **policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._why_refused(Headers(scope=scope), scope["path"])

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (refusal or self._app)(scope, receive, sent)

    def _why_refused(self, headers: Headers, path: str) -> JSONResponse | None:
        """Return a refusal; None: a request may pass."""
        origin = headers.get("origin")
        is_opened = (
            path == "/"
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") in self._opened_as
        )
        if (_is_foreign(headers) and not is_opened) or (
            origin is not None and not _is_of(origin, headers.get("host", ""))
        ):
            return _refusal("another site may not ask here; open the page itself", 403)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MOST_BODY_BYTES:
            return _refusal(f"a question has {MOST_BODY_BYTES:,} bytes at most; ask for less", 413)
        return None


def _is_foreign(headers: Headers) -> bool:
    """Whether a browser says that another site asks; other clients say nothing."""
    return headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}


def _is_of(origin: str, host: str) -> bool:
    """Whether an origin is that of the page; what hides its origin is not."""
    return urlsplit(origin).netloc.lower() == host.lower() != ""


def _refusal(text: str, status: int = 400) -> JSONResponse:
    return JSONResponse({"event": "refused", "text": one_line(text)}, status)


async def _query(request: Request) -> dict[str, str]:
    """Read the fields of a question, of an address or of a body."""
    if request.method == "POST":
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BODY_BYTES:
                raise InputError(f"a question has {MOST_BODY_BYTES:,} bytes at most; ask for less")
        try:
            read = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InputError("a question is a JSON object of texts; send one") from error
        is_right = isinstance(read, dict) and all(isinstance(each, str) for each in read.values())
        if not is_right:
            raise InputError("a question is a JSON object of texts; send one")
        return dict(read)
    every = request.query_params.multi_items()
    if len(every) != len(dict(every)):
        raise InputError("the address has a field twice; give each once")
    return dict(every)


class _Asked(NamedTuple):
    """A request, read.

    Attributes:
        state: What is asked.
        own: Fields that are the request's own: a stage, an axis, a target.
        words: The language.
    """

    state: State
    own: dict[str, str]
    words: Words


_OWN = ("lang", "stage", "axis", "target", "verb", "other", "about")


async def _asked(request: Request) -> _Asked:
    """Read a request.

    Raises BrimfulError: something in it cannot be used.
    """
    query = await _query(request)
    own = {key: query.pop(key) for key in _OWN if key in query}
    accepted = request.headers.get("accept-language", "")
    words = words_of(own.pop("lang", "") or language_of(accepted))
    return _Asked(read_state(query), own, words)


def _as_sent(asked: _Asked, **more: Any) -> dict[str, Any]:
    """Write a question as a worker reads it."""
    return {"query": fields_of(asked.state), "language": asked.words.language, **more}


def _choice(own: dict[str, str], key: str, allowed: Sequence[str]) -> str:
    chosen = own.get(key, allowed[0])
    if chosen not in allowed:
        raise InputError(f"{key}={chosen[:40]!r} is none of {', '.join(allowed)}; give one")
    return chosen


async def _events(
    request: Request, pool: Pool, sent: dict[str, Any], *, urgency: int = 0
) -> AsyncIterator[Event]:
    """Yield a worker's events while whoever asked is there; refusals are events too."""
    events = pool.ask(sent, urgency=urgency)
    try:
        while True:
            following = asyncio.ensure_future(anext(events))
            try:
                while not (await asyncio.wait({following}, timeout=_ASKER_EVERY_S))[0]:
                    if await request.is_disconnected():
                        return
                yield following.result()
            finally:
                if not following.done():
                    following.cancel()
                    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                        await following
    except StopAsyncIteration:
        return
    except BusyError:
        yield {"event": "refused", "text": _BUSY}
    except TimeoutError:
        yield {"event": "refused", "text": _LATE}
    except ConnectionError:
        yield {"event": "refused", "text": _GONE}
    finally:
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator


def _streamed(events: AsyncIterator[Event]) -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        async for event in events:
            yield json_text(event) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


async def _one(request: Request, events: AsyncIterator[Event]) -> Response:
    """Return the one event that there is."""
    found = [event async for event in events] or [{"event": "refused", "text": _GONE}]
    status = _refused_status(request) if found[-1]["event"] == "refused" else 200
    return Response(json_text(found[-1]), status, media_type="application/json")


def _refused_status(request: Request) -> int:
    """Return how a refusal is marked: to the page, which sends forms, it is an answer."""
    return 200 if request.method == "POST" else 400


Handler = Callable[[Request, _Asked, Pools], Awaitable[Response]]


def _handled(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        try:
            return await handler(request, await _asked(request), request.app.state.pools)
        except BrimfulError as error:
            return _refusal(str(error), _refused_status(request))

    return handle


@_handled
async def _estimate(request: Request, asked: _Asked, pools: Pools) -> Response:
    """Answer at once; the last stage, which takes longer, by a process of its own."""
    stage = _choice(asked.own, "stage", ("replayed", *STAGES))
    pool = dict(zip(STAGES, (pools.quick, pools.replays, pools.slow), strict=True))[stage]
    return await _one(request, _events(request, pool, _as_sent(asked, do="ask", stage=stage)))


@_handled
async def _sweep(request: Request, asked: _Asked, pools: Pools) -> Response:
    sent = _as_sent(asked, do="sweep", axis=asked.own.get("axis", "seq_len"))
    return await _one(request, _events(request, pools.slow, sent, urgency=1))


@_handled
async def _why(request: Request, asked: _Asked, pools: Pools) -> Response:
    about = _choice(asked.own, "about", ("reasons", "rules"))
    return await _one(request, _events(request, pools.slow, _as_sent(asked, do="why", what=about)))


@_handled
async def _compare(request: Request, asked: _Asked, pools: Pools) -> Response:
    other = {key: text for key, text in parse_qsl(asked.own.get("other", "")) if key != "lang"}
    read_state(other)
    return await _one(
        request, _events(request, pools.slow, _as_sent(asked, do="compare", other=other))
    )


@_handled
async def _take(request: Request, asked: _Asked, pools: Pools) -> Response:
    sent = _as_sent(asked, do="take", target=asked.own.get("target", "plan.yaml"))
    return await _one(request, _events(request, pools.slow, sent))


@_handled
async def _market(request: Request, asked: _Asked, pools: Pools) -> Response:
    return _streamed(_events(request, pools.jobs, _as_sent(asked, do="market")))


@_handled
async def _run(request: Request, asked: _Asked, pools: Pools) -> Response:
    verb = _choice(asked.own, "verb", VERBS)
    events = _events(request, pools.jobs, _as_sent(asked, do="verb", verb=verb))
    return _streamed(_traced(events, pools) if verb == "estimate" else events)


async def _traced(events: AsyncIterator[Event], pools: Pools) -> AsyncIterator[Event]:
    """Yield events, and let the others know what was traced meanwhile."""
    async for event in events:
        yield event
    for pool in (pools.quick, pools.replays, pools.slow):
        pool.refresh()


async def _page(request: Request) -> Response:
    """Set the page; what the address asks is in its form, and its answer without a script."""
    refused, part = "", None
    words = words_of(language_of(request.headers.get("accept-language", "")))
    state, kept = read_state({}), ""
    try:
        asked = await _asked(request)
        state, words, kept = asked.state, asked.words, asked.own.get("other", "")
        if _is_foreign(request.headers):  # a link elsewhere does not allow that the hub is asked
            state = state.changed(**{HUB: ""})
            asked = asked._replace(state=state)
            kept = urlencode([each for each in parse_qsl(kept) if each[0] != HUB])
        sent = _as_sent(asked, do="ask", stage="replayed")
        async for event in _events(request, request.app.state.pools.replays, sent):
            part, refused = event.get("part"), event.get("text", "")
    except BrimfulError as error:
        refused = one_line(str(error))
    text = main_page(state, words, part, refused=refused, kept=kept)
    return HTMLResponse(text, 400 if refused else 200)


async def _accuracy(request: Request) -> Response:
    try:
        words = words_of(request.query_params.get("lang", "en"))
    except BrimfulError as error:
        return _refusal(str(error))
    return HTMLResponse(accuracy_page(words))


async def _asset(request: Request) -> Response:
    """Hand out one of the page's own files, by name; there are no others."""
    name = request.path_params["name"]
    if name not in ASSETS:
        return PlainTextResponse("no such file\n", 404)
    kept = {"Cache-Control": "max-age=3600"}
    return Response(asset(name), media_type=ASSETS[name], headers=kept)


async def _health(_request: Request) -> Response:
    return JSONResponse({"schema": "brimful.web/1"})


_ROUTES = [
    Route("/", _page),
    Route("/accuracy", _accuracy),
    Route("/assets/{name}", _asset),
    Route("/api/health", _health),
    Route("/api/estimate", _estimate, methods=["GET", "POST"]),
    Route("/api/sweep", _sweep, methods=["GET", "POST"]),
    Route("/api/why", _why, methods=["GET", "POST"]),
    Route("/api/compare", _compare, methods=["GET", "POST"]),
    Route("/api/take", _take, methods=["GET", "POST"]),
    Route("/api/gpus", _market, methods=["POST"]),
    Route("/api/run", _run, methods=["POST"]),
]
