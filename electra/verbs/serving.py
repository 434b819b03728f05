"""Models behind HTTP: serve, and the page of a run."""

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from electra.assignments import override_from_toml
from electra.errors import import_extra, require
from electra.files import read_text
from electra.service.config import ServeConfig
from electra.terminal.printing import print_done
from electra.verbs.arguments import as_path, as_words
from electra.verbs.options import DryRun, Planned, Set, Toml, settings_of

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN = "ELECTRA_TOKEN"


def serve(
    folders: tuple[Path, ...],
    *,
    index: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
    set_: Annotated[Set, settings_of(ServeConfig())] = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Serve named models over HTTP: detect, fill, embed, predict, search and a web page.

    Requests are computed in batches, in float32, so that an answer does not depend on other
    requests. The page is at /, the API documentation at /docs, and metrics for Prometheus at
    /metrics. By default only this machine can reach the service. With another --host, clients must
    send the token in the environment variable ELECTRA_TOKEN or in --token-file. After Ctrl-C or
    SIGTERM, the service answers the requests in progress and stops; SIGHUP reloads all models. No
    data is sent elsewhere.

    Example: electra serve run reviews-scores

    Args:
        folders: Runs, checkpoints (RUN/checkpoints/step-...), Hugging Face folders, folders of
            `electra finetune`, and english-tiny; NAME=FOLDER gives a name.
        index: Folder of an index that `electra search` wrote, in which the model for retrieval
            searches.
        host: Address to listen on; 0.0.0.0: all.
        port: Port to listen on; 0: a free one.
        token_file: File with the token, such as a secret of Docker or a credential of systemd.
    """
    settings = override_from_toml(ServeConfig(), as_path(config), as_words(set_))
    _serve(folders, host, port, settings, dry_run, index=index, token_file=token_file)


def page(
    folders: tuple[Path, ...],
    *,
    port: int = 0,
    open_: Annotated[bool, Parameter(name="--open", negative="--no-open")] = True,
    set_: Annotated[Set, settings_of(ServeConfig())] = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Open the page of a run: its live curves, and the model's answers on your sentences.

    The page follows a run in training, and loads each new checkpoint. A second folder is compared
    with the first on the same sentence.

    Example: electra page run

    Args:
        folders: As for `electra serve`.
        port: Port to listen on; 0: a free one.
        open_: Whether a browser is opened.
    """
    settings = override_from_toml(ServeConfig(), as_path(config), as_words(set_))
    _serve(folders, LOOPBACK[0], port, settings, dry_run, is_page=True, open_=open_)


def _serve(
    folders: tuple[Path, ...],
    host: str,
    port: int,
    settings: ServeConfig,
    dry_run: bool,
    *,
    index: Path | None = None,
    token_file: Path | None = None,
    is_page: bool = False,
    open_: bool = False,
) -> None:
    token = _read_token(token_file)
    require(
        host in LOOPBACK or token is not None,
        f"--host {host} opens the service to other machines: set {TOKEN} or --token-file to a "
        f"secret that clients must send, or use --host {LOOPBACK[0]}",
    )
    require(0 <= port < 1 << 16, f"--port {port} must be 0 to 65535")
    require(bool(folders), "name at least one folder to serve")
    if dry_run:
        from electra.inference.models import name_folders

        name_folders(folders)
        raise Planned(settings, f"serve {', '.join(map(str, folders))} on {host}:{port}")
    for module in ("fastapi", "fastapi_offline", "uvicorn", "prometheus_client"):
        import_extra(module, "serve", "serving")
    from electra.service.server import Server

    server = Server(folders, settings, host, port, index=index, token=token, follow=is_page)

    def ready() -> None:
        names = ", ".join(server.models)
        print_done(f"serving {names} on {server.address} (interface: {server.address}/docs)")
        if open_:
            import webbrowser

            webbrowser.open(server.address)

    server.run(ready)
    print_done("stopped")
    if server.is_computing:
        sys.stdout.flush()
        os._exit(0)


def _read_token(path: Path | None) -> str | None:
    """Return the token that clients must send; None: there is none."""
    token, source = os.environ.get(TOKEN) or None, TOKEN
    if path is not None:
        require(token is None, f"{TOKEN} and --token-file {path} are both given; leave one out")
        token, source = read_text(path).removesuffix("\n"), str(path)
    require(
        token is None or (token.isascii() and token.isprintable() and len(token) >= 16),
        f"{source} must have at least 16 printable ASCII characters",
    )
    return token
