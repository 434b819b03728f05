"""The service: models, queue and limits behind HTTP, and the page, which is one HTML file."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException

from electra.errors import UserError, count_of, did_you_mean, require, require_choice
from electra.files import parse_json
from electra.inference.ask import Candidate
from electra.inference.figure_2 import PictureToken, draw_picture
from electra.inference.models import MAX_TOP, Embed, PretrainedModel, Search, ServedModel, TaskModel
from electra.inference.search import Hit, refuse_empty
from electra.reports.glossary import GLOSSARY
from electra.reports.tokens import Word
from electra.service.config import ServeConfig
from electra.service.gate import Gate, Meters, refuse
from electra.service.queue import BatchQueue, Failed, Full, Question
from electra.terminal.printing import print_done, print_note
from electra.text.characters import replace_surrogates
from electra.version import __version__

LOOK_SECONDS = 2.0
"""Time between two looks for a new checkpoint of a run that continues."""
BATCH_SECONDS = 0.5
"""Time for the batch in progress when all requests have been answered or given up."""
DESCRIPTION = """Encoders pre-trained by replaced token detection, and models fine-tuned from them.

`GET /models` says what each model can be asked. Errors are `{"error": "one line"}`. Status 429
comes with `Retry-After`. The page is at [/](/)."""


class Service:
    """Models, queue and limits of one service, and its application.

    Clients must send the token, if there is one, as `Authorization: Bearer TOKEN`. `hosts` are the
    host names that the service accepts, so that requests by a site whose name points to this
    machine are refused; None: any. With `follow`, new checkpoints of runs are loaded.
    `read` returns the model of a name and a folder, for `read_again`.
    """

    def __init__(
        self,
        models: dict[str, ServedModel],
        config: ServeConfig,
        read: Callable[[str, Path], ServedModel],
        *,
        token: str | None = None,
        hosts: Sequence[str] | None = None,
        follow: bool = False,
    ):
        self.models, self.config, self.read, self.follow = models, config, read, follow
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_outdated = asyncio.Event()
        self.meters = Meters(self.models, lambda: self.queue.num_waiting)
        self.queue = BatchQueue(
            config.batch_items, config.max_waiting_chars, self.meters.observe_batch
        )
        app = FastAPIOffline(
            title="electra",
            version=__version__,
            description=DESCRIPTION,
            redoc_url=None,
            lifespan=self._live,
            # What is tried at /docs can then send the token; the gate asks for it.
            dependencies=[Depends(HTTPBearer(auto_error=False))] if token else [],
        )
        app.state.service = self
        app.include_router(routes)
        for kind in (RequestValidationError, HTTPException, UserError, Full, Failed, Exception):
            app.add_exception_handler(kind, _explain)
        self.app = Gate(app, config, self.meters, token=token, hosts=hosts)

    @asynccontextmanager
    async def _live(self, app: FastAPI) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        keeper = asyncio.create_task(self._follow() if self.follow else self._keep())
        yield
        keeper.cancel()
        await asyncio.to_thread(self.queue.close, BATCH_SECONDS)

    def read_again(self) -> None:
        """Have all models read again soon; a handler of signals may call this."""
        if self._loop:
            self._loop.call_soon_threadsafe(self._is_outdated.set)
        else:
            self._is_outdated.set()

    async def _keep(self) -> None:
        """Replace each model when asked to; requests in progress keep the one they began with."""
        # If a folder cannot be read, its model is not changed.
        while await self._is_outdated.wait():
            self._is_outdated.clear()
            for name, model in self.models.items():
                try:
                    self.models[name] = await asyncio.to_thread(self.read, name, model.folder)
                except Exception as error:
                    print_note(f"{name} was not replaced: {error}")
                else:
                    print_done(f"read {name} again from {model.folder}")

    async def _follow(self) -> None:
        while True:
            for model in self.models.values():
                # Removed meanwhile, or no memory for two at a time: the next look may help.
                with suppress(Exception):
                    if isinstance(model, PretrainedModel) and model.is_outdated():
                        await asyncio.to_thread(model.load)
            await asyncio.sleep(LOOK_SECONDS)

    async def ask(self, question: Question, values: Sequence[Any], sizes: Sequence[int]) -> Any:
        """Return the answers to some values, computed with those of other requests."""
        limit, longest = self.config.max_texts, self.config.max_chars
        require(len(values) <= limit, f"too many texts: {len(values)}, at most {limit} per request")
        told = f"a text of {count_of(max(sizes), 'character')}; it may have {longest}"
        require(max(sizes) <= longest, told)
        futures = map(asyncio.wrap_future, self.queue.submit(question, values, sizes))
        try:
            async with asyncio.timeout(self.config.max_seconds):
                return await asyncio.gather(*futures)
        except TimeoutError:
            message = f"no answer within {self.config.max_seconds:g} s"
            raise HTTPException(503, message, {"Retry-After": "5"}) from None

    def find(self, name: str, verb: str | None) -> Any:
        """Return the model of a name; refuse a verb that the model does not have."""
        if name not in self.models:
            raise HTTPException(404, f"no model {name!r}{did_you_mean(name, self.models)}")
        model = self.models[name]
        if verb and verb not in model.verbs:
            has = ", ".join(model.verbs) or "nothing before its first checkpoint"
            raise HTTPException(404, f"{name} cannot {verb}; it answers {has}")
        return model


def _explain(request: Request, error: Exception) -> JSONResponse:
    """Return an answer with a one-line error of the request or of the service."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "value_error":  # of a validator here
            return refuse(422, f"{place}{': ' * bool(place)}{first['ctx']['error']}")
        whole = "the body must be a JSON object, sent with Content-Type: application/json"
        return refuse(422, f"{place}: {first['msg']}" if place else whole)
    if isinstance(error, HTTPException):
        is_routers = error.detail in ("Not Found", "Method Not Allowed")
        detail = f"{error.detail}; GET /docs lists the requests" if is_routers else error.detail
        return refuse(error.status_code, detail, error.headers)
    if isinstance(error, Full):
        return refuse(429, str(error), {"Retry-After": str(error.retry_after)})
    if isinstance(error, UserError):
        return refuse(422, str(error))
    return refuse(500, str(error) if isinstance(error, Failed) else "an error of the service")


def _require_whole(text: str) -> str:
    is_whole = replace_surrogates(text) == text
    require(is_whole, "a text has an unpaired surrogate, which is not a character")
    return text


Text = Annotated[str, AfterValidator(_require_whole)]


class Asked(BaseModel):
    """The body of a request, whose every field is known."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _require_known(cls, body: Any) -> Any:
        for name in body if isinstance(body, dict) else ():
            require_choice("field", name, cls.model_fields)
        return body


class Texts(Asked):
    """Texts to answer."""

    texts: list[Text] = Field(min_length=1, examples=[["the chef ate the piano"]])


class Gaps(Texts):
    """Texts with at least one [MASK] each."""

    texts: list[Text] = Field(min_length=1, examples=[["the chef [MASK] the meal"]])
    top: int = Field(5, ge=1, le=MAX_TOP, description="Candidates for each gap.")


class ToEmbed(Texts):
    """Texts to embed."""

    layer: int | None = Field(
        None, ge=0, description="Layer; 0: the embeddings; null: the last layer."
    )
    pooling: Literal["mean", "cls"] | None = Field(
        None, description="Pooling of the states of a text; null: the mean."
    )


class Queries(Asked):
    """Queries to search an index for."""

    queries: list[Text] = Field(min_length=1, examples=[["who cooked the meal?"]])
    top: int = Field(10, ge=1, le=MAX_TOP, description="Passages for each query.")


class Records(Asked):
    """Records with the fields of the task: text; text_a, text_b; tokens; question, context."""

    records: list[dict[str, Any]] = Field(min_length=1, examples=[[{"text": "a fine film"}]])


class PictureOf(Asked):
    """A text for the paper's picture."""

    text: Text = Field(examples=["the chef cooked the meal"])
    mask_prob: float = Field(0.15, ge=0, le=1, description="Share of the tokens masked.")
    positions: list[int] | None = Field(None, description="Tokens masked, instead of mask_prob.")
    seed: int = Field(0, ge=0, lt=1 << 32, description="Seed of positions and samples.")
    top: int = Field(5, ge=1, le=MAX_TOP, description="The generator's best tokens.")
    beside: list[str] = Field([], max_length=3, description="Models that judge as well.")


@dataclass
class Words:
    """A text and its words."""

    text: str
    words: list[Word]


@dataclass
class Filled:
    """A text and the best tokens for each of its gaps."""

    text: str
    gaps: list[list[Candidate]]


@dataclass
class Found:
    """A query and the passages nearest it, the best first."""

    query: str
    passages: list[Hit]


@dataclass
class Picture:
    """The paper's picture of a text."""

    judges: list[str]
    tokens: list[PictureToken]
    num_cut: int


@dataclass
class Curves:
    """New records of a run's metrics.jsonl; all of them if it began again."""

    records: list[dict[str, Any]]
    restarted: bool


def _find_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_find_service)]


def _find_model(verb: str) -> Callable[..., Any]:
    """Return a dependency: the model that the path names, which must have the verb."""

    def find(service: Served, model: Annotated[str, InPath(description="Name of a model.")]) -> Any:
        return service.find(model, verb)

    return find


class StrictRequest(Request):
    """A request whose body is JSON by the rules for files."""

    async def json(self) -> Any:
        """Return the value of the body."""
        try:
            return parse_json(await self.body(), "the body")
        except UserError as error:
            raise HTTPException(422, str(error)) from None


class StrictRoute(APIRoute):
    """A route with strict requests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return answer


routes = APIRouter(route_class=StrictRoute)


@routes.get("/models", tags=["models"])
async def list_models(service: Served) -> list[dict[str, Any]]:
    """The models, and what each of them can be asked."""
    return [model.describe() for model in service.models.values()]


@routes.post("/models/{model}/detect", tags=["answers"])
async def detect(
    service: Served, found: Annotated[PretrainedModel, Depends(_find_model("detect"))], body: Texts
) -> list[Words]:
    """Which words look replaced: the discriminator's probabilities."""
    answers = await service.ask(found.detect, body.texts, list(map(len, body.texts)))
    return list(map(Words, body.texts, answers))


@routes.post("/models/{model}/fill", tags=["answers"])
async def fill(
    service: Served, found: Annotated[PretrainedModel, Depends(_find_model("fill"))], body: Gaps
) -> list[Filled]:
    """The generator's best tokens for each [MASK]."""
    answers = await service.ask(found.fill, body.texts, list(map(len, body.texts)))
    best = [[gap[: body.top] for gap in gaps] for gaps in answers]
    return list(map(Filled, body.texts, best))


@routes.post("/models/{model}/embed", tags=["answers"])
async def embed(
    service: Served, found: Annotated[ServedModel, Depends(_find_model("embed"))], body: ToEmbed
) -> list[list[float] | None]:
    """An embedding of each text; null: it is blank. A model for retrieval gives its vector."""
    question: Question
    if isinstance(found, TaskModel):
        is_own = body.layer is None and body.pooling is None
        require(is_own, f"{found.name} has vectors of its own; leave layer and pooling out")
        question = found.embed
    else:
        encoder = found.networks.encoder
        assert encoder
        layer = encoder.num_layers if body.layer is None else body.layer
        encoder.require_layer(layer)
        question = Embed(encoder, layer, body.pooling or "mean")
    sizes = list(map(len, body.texts))
    answers: list[list[float] | None] = await service.ask(question, body.texts, sizes)
    return answers


@routes.post("/models/{model}/search", tags=["answers"])
async def search(
    service: Served, found: Annotated[TaskModel, Depends(_find_model("search"))], body: Queries
) -> list[Found]:
    """The passages of the index that are nearest each query, with their cosines."""
    refuse_empty(body.queries)  # before they enter the queue
    question, sizes = Search(found, body.top), list(map(len, body.queries))
    answers = await service.ask(question, body.queries, sizes)
    return list(map(Found, body.queries, answers))


@routes.post("/models/{model}/predict", tags=["answers"])
async def predict(
    service: Served, found: Annotated[TaskModel, Depends(_find_model("predict"))], body: Records
) -> list[dict[str, Any]]:
    """The answers of a fine-tuned model; `is_cut` marks a record that was longer than its rows."""
    sizes = list(map(_count_chars, body.records))
    examples = found.model.parse(body.records)  # before they enter the queue
    answers: list[dict[str, Any]] = await service.ask(found.predict, examples, sizes)
    return answers


def _count_chars(record: Any) -> int:
    """Return the characters of all texts in a record, of which none has an unpaired surrogate."""
    if isinstance(record, str):
        return len(_require_whole(record))
    if isinstance(record, dict):
        return sum(_count_chars(each) for pair in record.items() for each in pair)
    return sum(map(_count_chars, record)) if isinstance(record, list) else 1


@routes.post("/models/{model}/picture", tags=["answers"])
async def picture(
    service: Served,
    found: Annotated[PretrainedModel, Depends(_find_model("picture"))],
    body: PictureOf,
) -> Picture:
    """The paper's picture: masked, filled by the generator, judged."""
    _, own, generator, _ = found.networks
    judges = [found.name, *body.beside] if own else body.beside
    others = [service.find(name, "detect").networks.discriminator for name in body.beside]
    draw = partial(
        draw_picture,
        generator,
        [own, *others] if own else others,
        mask_prob=body.mask_prob if generator else 0,
        positions=body.positions,
        seed=body.seed,
        top=body.top,
    )
    (drawn,) = await service.ask(lambda texts: [draw(texts[0])], [body.text], [len(body.text)])
    return Picture(judges, drawn.tokens, drawn.num_cut)


@routes.get("/models/{model}/curves", tags=["models"])
async def curves(service: Served, model: str, after: Annotated[int, Query(ge=-1)] = -1) -> Curves:
    """The records of a run's metrics beyond a step; the run may still continue."""
    found = service.find(model, None)
    if not isinstance(found, PretrainedModel) or not found.is_run:
        raise HTTPException(404, f"{model!r} is not a run, which alone has curves")
    return Curves(*await asyncio.to_thread(found.read_curves, after))


@routes.get("/health", tags=["service"])
async def health(service: Served) -> dict[str, Literal["alive"]]:
    """Whether the service computes at all."""
    if not service.queue.is_alive:
        raise HTTPException(503, "the computing thread has ended")
    return {"status": "alive"}


@routes.get("/ready", tags=["service"])
async def ready(service: Served) -> dict[str, Literal["ready"]]:
    """Whether requests are taken."""
    await health(service)
    return {"status": "ready"}


@routes.get("/metrics", tags=["service"])
async def metrics(service: Served) -> Response:
    """Counts and durations, as Prometheus reads them."""
    return Response(generate_latest(service.meters.registry), media_type=CONTENT_TYPE_LATEST)


@routes.get("/", include_in_schema=False)
async def page() -> Response:
    """The page, without external resources."""
    return Response(_read_page(), media_type="text/html", headers=PAGE_HEADERS)


@cache
def _read_page() -> str:
    """Return the page, in which the curves have the titles of the glossary."""
    text = (files("electra.service") / "page.html").read_text(encoding="utf-8")
    titles = {name: metric.title for name, metric in GLOSSARY.items()}
    return text.replace("GLOSSARY_TITLES", json.dumps(titles))


def _hash(tag: str) -> str:
    """Return the source expression of the page's one script or style, for its policy."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", _read_page(), re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


PAGE_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; script-src {_hash('script')}; "
    f"style-src {_hash('style')}; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""No script, style or address but the page's own, even if a text were taken for HTML."""
