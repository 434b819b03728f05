"""The page: one HTML file beside this one, without external resources."""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from pydantic import AfterValidator, BaseModel, Field
from starlette.exceptions import HTTPException

from electra.config import ServeConfig
from electra.errors import UserError, did_you_mean, require
from electra.inference.ask import encode_gaps
from electra.inference.models import (
    MAX_TOP,
    EmbedRequest,
    PictureRequest,
    PretrainedModel,
    ServedModel,
    TaskModel,
)
from electra.service.gate import Gate, Meters
from electra.service.queue import BatchQueue, Full, Question
from electra.text.streams import replace_surrogates
from electra.version import __version__


@cache
def read_page() -> str:
    """Return the page."""
    return (files("electra.service") / "page.html").read_text(encoding="utf-8")


def _hash(tag: str) -> str:
    """Return the source expression of the page's one script or style, for its policy."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", read_page(), re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


PAGE_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; script-src {_hash('script')}; "
    f"style-src {_hash('style')}; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""No script, style or address but the page's own, even if a text were taken for HTML."""


LOOK_SECONDS = 2.0
"""Time between two looks at a run that goes on, for a new checkpoint."""

DESCRIPTION = """Encoders pre-trained by replaced token detection, and models fine-tuned from them.

`GET /models` says what each model can be asked. Errors are `{"error": "one line"}`. Status 429
comes with `Retry-After`. The page is at [/](/)."""


def _require_whole(text: str) -> str:
    require(
        replace_surrogates(text) == text,
        "a text has an unpaired surrogate, which is not a character",
    )
    return text


Text = Annotated[str, AfterValidator(_require_whole)]


class Texts(BaseModel):
    """Texts to answer."""

    texts: list[Text] = Field(min_length=1, examples=[["the chef ate the piano"]])


class Gaps(BaseModel):
    """Texts with at least one [MASK] each."""

    texts: list[Text] = Field(min_length=1, examples=[["the chef [MASK] the meal"]])
    top: int = Field(5, ge=1, le=MAX_TOP, description="Candidates for each gap.")


class ToEmbed(BaseModel):
    """Texts to embed."""

    texts: list[Text] = Field(min_length=1, examples=[["the chef cooked the meal"]])
    layer: int | None = Field(None, ge=1, description="Layer from 1; null: the last.")
    pooling: Literal["mean", "cls"] = Field("mean", description="Of the states of a text.")


class Records(BaseModel):
    """Records with the fields of the task: text; text_a, text_b; tokens; question, context."""

    records: list[dict[str, Any]] = Field(min_length=1, examples=[[{"text": "a fine film"}]])


class PictureOf(BaseModel):
    """A text for the paper's picture."""

    text: Text = Field(examples=["the chef cooked the meal"])
    mask_prob: float = Field(0.15, ge=0, le=1, description="Share of the tokens masked.")
    positions: list[int] | None = Field(None, description="Tokens masked, instead of mask_prob.")
    seed: int = Field(0, ge=0, lt=1 << 32, description="Of positions and samples.")
    top: int = Field(5, ge=1, le=MAX_TOP, description="The generator's best tokens.")
    beside: list[str] = Field([], max_length=3, description="Models that judge as well.")


class Word(BaseModel):
    """A word and the probability that it was replaced."""

    text: str
    start: int
    end: int
    prob_replaced: float


class Words(BaseModel):
    """A text and its words."""

    text: str
    words: list[Word]


class Candidate(BaseModel):
    """A token that may stand at a place."""

    token: str
    prob: float


class Filled(BaseModel):
    """A text and the best tokens for each of its gaps."""

    text: str
    gaps: list[list[Candidate]]


class PictureToken(BaseModel):
    """A token: original, sample, the generator's candidates, each discriminator's verdict."""

    original: str
    start: int
    end: int
    is_masked: bool
    token: str
    candidates: list[Candidate]
    prob_original: float
    prob_token: float
    probs_replaced: list[float]


class Picture(BaseModel):
    """The paper's picture of a text."""

    judges: list[str]
    tokens: list[PictureToken]
    num_cut: int


class Curves(BaseModel):
    """New records of a run's metrics.jsonl."""

    records: list[dict[str, Any]]
    restarted: bool


class Service:
    """Models, queue and limits of one service, and its application.

    Args:
        models: The models by name.
        config: Limits.
        token: What a client must send as `Authorization: Bearer TOKEN`; None: nothing.
        hosts: Names under which the service may be addressed; None: any. A page of another site
            that has its name point to this machine is refused thereby.
        follow: Whether new checkpoints of the runs are taken up.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        config: ServeConfig,
        *,
        token: str | None = None,
        hosts: Sequence[str] | None = None,
        follow: bool = False,
    ):
        self.models, self.config, self.follow = models, config, follow
        self.meters = Meters(lambda: self.queue.num_waiting)
        self.queue = BatchQueue(
            config.batch_items, config.max_waiting_chars, self.meters.observe_batch
        )
        self.is_ready = False
        app = FastAPIOffline(
            title="electra",
            version=__version__,
            description=DESCRIPTION,
            redoc_url=None,
            lifespan=self._live,
        )
        self._add_routes(app)
        app.add_exception_handler(RequestValidationError, _refuse_validation)
        app.add_exception_handler(HTTPException, _refuse_http)
        app.add_exception_handler(UserError, lambda _, error: _refuse(422, str(error)))
        app.add_exception_handler(
            Full, lambda _, error: _refuse(429, str(error), error.retry_after)
        )
        self.app = Gate(app, config, self.meters, token=token, hosts=hosts)

    @asynccontextmanager
    async def _live(self, app: FastAPI) -> AsyncIterator[None]:
        followers = asyncio.create_task(self._follow()) if self.follow else None
        self.is_ready = True
        yield
        self.is_ready = False
        if followers:
            followers.cancel()
        await asyncio.to_thread(self.queue.close)

    async def _follow(self) -> None:
        while True:
            for model in self.models.values():
                if isinstance(model, PretrainedModel) and model.is_outdated():
                    with suppress(UserError):  # removed meanwhile: the next one is taken
                        await asyncio.to_thread(model.load)
            await asyncio.sleep(LOOK_SECONDS)

    async def ask(self, question: Question, values: Sequence[Any], sizes: Sequence[int]) -> Any:
        """Return the answers to some values, computed with those of other requests.

        Raises:
            Full: The queue has no room.
            HTTPException: The answers took too long.
        """
        limit, longest = self.config.max_texts, self.config.max_chars
        require(len(values) <= limit, f"{len(values)} texts; a request may have {limit}")
        require(max(sizes) <= longest, f"a text of {max(sizes)} characters; {longest} are allowed")
        future = asyncio.wrap_future(self.queue.submit(question, values, sizes))
        try:
            return await asyncio.wait_for(future, self.config.max_seconds)
        except TimeoutError:
            message = f"no answer within {self.config.max_seconds:g} s"
            raise HTTPException(503, message, {"Retry-After": "5"}) from None

    def find(self, name: str, verb: str | None) -> Any:
        """Return the model of a name, which can be asked the verb, if one is named.

        Raises:
            HTTPException: There is none.
        """
        if name not in self.models:
            raise HTTPException(404, f"no model {name!r}{did_you_mean(name, self.models)}")
        model = self.models[name]
        if verb and verb not in model.verbs:
            has = ", ".join(model.verbs) or "nothing before its first checkpoint"
            raise HTTPException(404, f"{name} cannot {verb}; it answers {has}")
        return model

    def _add_routes(self, app: FastAPI) -> None:
        def pretrained(verb: str) -> Callable[[str], PretrainedModel]:
            def find(model: Annotated[str, Path(description="Name of a model.")]) -> Any:
                return self.find(model, verb)

            return find

        @app.get("/", include_in_schema=False)
        async def page() -> Response:
            return Response(read_page(), media_type="text/html", headers=PAGE_HEADERS)

        @app.get("/models", tags=["models"])
        async def list_models() -> list[dict[str, Any]]:
            """The models, and what each of them can be asked."""
            return [model.describe() for model in self.models.values()]

        @app.post("/models/{model}/detect", tags=["answers"])
        async def detect(
            found: Annotated[PretrainedModel, Depends(pretrained("detect"))], body: Texts
        ) -> list[Words]:
            """Which words look replaced: the discriminator's probabilities."""
            answers = await self.ask(found.detect, body.texts, [len(text) for text in body.texts])
            return [
                {"text": text, "words": [word._asdict() for word in words]}  # type: ignore[misc]
                for text, words in zip(body.texts, answers, strict=True)
            ]

        @app.post("/models/{model}/fill", tags=["answers"])
        async def fill(
            found: Annotated[PretrainedModel, Depends(pretrained("fill"))], body: Gaps
        ) -> list[Filled]:
            """The generator's best tokens for each [MASK]."""
            for text in body.texts:
                assert found.networks.generator
                encode_gaps(found.networks.generator, text[: self.config.max_chars + 1])
            answers = await self.ask(found.fill, body.texts, [len(text) for text in body.texts])
            return [
                {
                    "text": text,
                    "gaps": [[each._asdict() for each in gap[: body.top]] for gap in gaps],
                }  # type: ignore[misc]
                for text, gaps in zip(body.texts, answers, strict=True)
            ]

        @app.post("/models/{model}/embed", tags=["answers"])
        async def embed(
            found: Annotated[PretrainedModel, Depends(pretrained("embed"))], body: ToEmbed
        ) -> list[list[float]]:
            """An embedding of each text."""
            assert found.encoder
            num_layers = found.encoder.num_layers
            layer = body.layer or num_layers
            require(layer <= num_layers, f"layer must lie in 1 to {num_layers}, not {layer}")
            requests = [EmbedRequest(text, layer, body.pooling) for text in body.texts]
            answers: list[list[float]] = await self.ask(
                found.embed, requests, [len(text) for text in body.texts]
            )
            return answers

        @app.post("/models/{model}/predict", tags=["answers"])
        async def predict(
            found: Annotated[TaskModel, Depends(pretrained("predict"))], body: Records
        ) -> list[dict[str, Any]]:
            """The answers of a fine-tuned model."""
            sizes = [_count_chars(record) for record in body.records]
            found.check(body.records)
            answers: list[dict[str, Any]] = await self.ask(found.predict, body.records, sizes)
            return answers

        @app.post("/models/{model}/picture", tags=["answers"])
        async def picture(
            found: Annotated[PretrainedModel, Depends(pretrained("picture"))], body: PictureOf
        ) -> Picture:
            """The paper's picture: masked, filled by the generator, judged."""
            others = [self.find(name, "detect") for name in body.beside]
            request = PictureRequest(
                body.text,
                body.mask_prob,
                None if body.positions is None else tuple(body.positions),
                body.seed,
                body.top,
                tuple(other.networks.discriminator for other in others),
            )
            (drawn,) = await self.ask(found.picture, [request], [len(body.text)])
            own = [found.name] if found.networks.discriminator else []
            return {  # type: ignore[return-value]
                "judges": [*own, *body.beside],
                "tokens": [
                    each._asdict()
                    | {"candidates": [candidate._asdict() for candidate in each.candidates]}
                    for each in drawn.tokens
                ],
                "num_cut": drawn.num_cut,
            }

        @app.get("/models/{model}/curves", tags=["models"])
        async def curves(model: str, after: Annotated[int, Query(ge=-1)] = -1) -> Curves:
            """The records of a run's metrics beyond a step; the run may still go on."""
            found = self.find(model, None)
            if not isinstance(found, PretrainedModel) or not found.is_run:
                raise HTTPException(404, f"{model!r} is not a run, which alone has curves")
            records, restarted = await asyncio.to_thread(found.read_curves, after)
            return Curves(records=records, restarted=restarted)

        @app.get("/health", tags=["service"])
        async def health() -> dict[str, Literal["alive"]]:
            """Whether the service computes at all."""
            if not self.queue.is_alive:
                raise HTTPException(503, "the computing thread has ended")
            return {"status": "alive"}

        @app.get("/ready", tags=["service"])
        async def ready() -> dict[str, Literal["ready"]]:
            """Whether requests are taken."""
            if not self.is_ready or not self.queue.is_alive:
                raise HTTPException(503, "the service is stopping")
            return {"status": "ready"}

        @app.get("/metrics", tags=["service"])
        async def metrics() -> Response:
            """Counts and durations, as Prometheus reads them."""
            return Response(self.meters.render(), media_type=self.meters.content_type)


def _count_chars(record: Any) -> int:
    """Return the characters of all texts in a record.

    Raises:
        UserError: A text has an unpaired surrogate, which no encoding can hold.
    """
    if isinstance(record, str):
        return len(_require_whole(record))
    if isinstance(record, dict):
        return sum(_count_chars(each) for pair in record.items() for each in pair)
    return sum(map(_count_chars, record)) if isinstance(record, list) else 1


def _refuse(status: int, message: str, retry_after: int | None = None) -> JSONResponse:
    headers = {"Retry-After": str(retry_after)} if retry_after else None
    safe = message.encode(errors="replace").decode()
    return JSONResponse({"error": safe}, status, headers)


def _refuse_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _refuse(422, f"the body is not JSON: {first['ctx']['error']}")
    place = ".".join(str(part) for part in first["loc"][1:])
    return _refuse(422, f"{place}: {first['msg']}" if place else first["msg"])


def _refuse_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    response = _refuse(error.status_code, str(error.detail))
    response.headers.update(error.headers or {})
    return response
