"""The site is built without a warning, with every page, every verb and every setting in it."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from html import unescape
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

import electra
from electra.cli.entry import VERBS

ROOT = Path(electra.__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # an announcement, not about the site
    how = {"cwd": ROOT, "env": environ, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *words], check=False, **how)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_there_and_in_the_navigation(site):
    home = (site / "index.html").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        assert (site / path.stem / "index.html").exists(), path.name
    for title in ("Start", "Guides", "Reference", "Results", "How it is built"):
        assert title in home


def test_every_link_leads_to_a_file_of_the_site(site):
    count = 0
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links begin at the root of a server
            continue
        here = page.relative_to(site).as_posix()
        for link in re.findall(r'(?:href|src)="([^"]*)"', page.read_text()):
            target = unquote(unescape(link)).partition("#")[0]
            if not target or target.startswith(("https:", "http:", "data:", "mailto:")):
                continue
            found = (page.parent / target.partition("?")[0]).resolve()
            assert (found / "index.html").exists() or found.is_file(), f"{here}: {link}"
            count += 1
    assert count > 1000


def test_nothing_is_loaded_from_elsewhere(site):
    """No script, style, font or picture of another site; links to read on are another matter."""
    linked = r'<link[^>]*rel="(?:stylesheet|icon|preconnect)"[^>]*href="([^"]*)"'
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*src="([^"]*)"', text)
        loaded += re.findall(linked, text)
        assert [link for link in loaded if "//" in link] == [], page


def test_verbs_settings_and_docstrings_are_in_the_reference(site):
    verbs = (site / "verbs" / "index.html").read_text()
    for verb in (verb for group in VERBS.values() for verb in group):
        name = verb.__name__.removesuffix("_file").rstrip("_")
        assert f"electra {name}" in verbs, verb
    settings = (site / "settings" / "index.html").read_text()
    for path in (ROOT / "electra").glob("*/config.py"):
        for name, value in vars(import_module(f"electra.{path.parent.name}.config")).items():
            if dataclasses.is_dataclass(value) and name.endswith("Config"):
                assert name in settings
                for field in dataclasses.fields(value):
                    assert f"<code>{field.name}</code>" in settings, (name, field.name)
    library = (site / "library" / "method" / "index.html").read_text()
    assert "ReplacedTokenDetection" in library
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any("replaced token detection" in each["text"].lower() for each in index["docs"])
