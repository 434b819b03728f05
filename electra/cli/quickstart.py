"""quickstart: every step once."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from electra.cli.options import DryRun, Set, Toml, print_dry_run, refuse_url, resolve
from electra.errors import require
from electra.quickstart.config import QUICKSTART


def quickstart(
    *,
    text: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    out: Path = Path("quickstart"),
    set_: Set = (),
    config: Toml = None,
    dry_run: DryRun = False,
) -> None:
    """Run every step once, in some minutes on two cores, and show the results.

    Without --text, the corpus is the documentation that Python and its installed packages carry.
    Before each step stands the command that does the same by hand.

    Example: electra quickstart --text notes/*.txt --out quickstart

    Parameters
    ----------
    text
        Your own text: files, folders or globs, as for `electra tokenizer`.
    out
        The folder to write; if it exists, a number is added to its name.
    """
    settings = resolve(QUICKSTART, config, set_)
    refuse_url(out)
    out = _next_free(out)
    if dry_run:
        source = ", ".join(text) or "the documentation of Python and its packages"
        return print_dry_run(settings, f"read {source} and write {out}")
    from electra.quickstart.run import quickstart as run_quickstart

    run_quickstart(text, out, settings)


def _next_free(out: Path) -> Path:
    require(bool(out.name), f"{out} exists already; name a folder in it, as {out / 'quickstart'}")
    free, number = out, 2
    while free.exists():
        free, number = out.with_name(f"{out.name}-{number}"), number + 1
    return free
