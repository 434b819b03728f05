"""The page as docs/SERVING.md shows it: `python -m docs.screenshot RUN` writes docs/page.png.

Needs playwright and a Chromium, which the environment variable CHROMIUM may name.
"""

import io
import os
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.serve import start_server

SENTENCE = "the old captain looked at the sea and said that the ship would not return"
MASK_PERCENT, SEED = "25", "1"
TIMEOUT = 600_000
"""Longest wait for the page, milliseconds: the machine may be busy."""


def main() -> None:
    """Serve a run, ask the page about a sentence, and write its picture in light mode."""
    words = [sys.executable, "-m", "electra", "page", sys.argv[1], "--no-open"]
    process, port = start_server(words)
    with process, sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 700}, color_scheme="light")
        page.set_default_timeout(TIMEOUT)
        page.goto(f"http://127.0.0.1:{port}")
        page.wait_for_selector("figure")
        page.fill("#text", SENTENCE)
        page.fill("#seed", SEED)
        page.locator("#rate").fill(MASK_PERCENT)
        page.wait_for_selector("#tokens:not([aria-busy])", state="attached")
        page.wait_for_selector(".guess")
        page.evaluate("document.activeElement.blur()")
        shot = page.screenshot(full_page=True, timeout=TIMEOUT)
        browser.close()
        process.terminate()
    # A palette makes a small file; this method keeps colours that are rare on the page.
    palette = Image.Quantize.MAXCOVERAGE
    picture = Image.open(io.BytesIO(shot)).convert("RGB").quantize(256, palette)
    picture.save(Path(__file__).with_name("page.png"), optimize=True)


if __name__ == "__main__":
    main()
