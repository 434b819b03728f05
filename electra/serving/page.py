"""The page: one HTML file beside this one, without external resources."""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files


@cache
def read_page() -> str:
    """Return the page."""
    return (files("electra.serving") / "page.html").read_text(encoding="utf-8")


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
