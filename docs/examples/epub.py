"""Texts of books: chapters of EPUB files, for a row of `FORMATS` (docs/EXTENDING.md)."""

import io
import posixpath
import zipfile
from collections.abc import Iterator
from urllib.parse import unquote
from xml.etree import ElementTree

from electra.errors import UserError
from electra.text.tables import Content


def epub_texts(content: Content) -> Iterator[str]:
    """Yield the chapters of a book, in the order of its spine."""
    try:
        with zipfile.ZipFile(io.BytesIO(content.stream.read())) as book:
            container = ElementTree.fromstring(book.read("META-INF/container.xml"))
            (rootfile,) = container.iterfind(".//{*}rootfile")
            package = rootfile.attrib["full-path"]
            root = ElementTree.fromstring(book.read(package))
            items = [each.attrib for each in root.iterfind(".//{*}item")]
            places = {each["id"]: each["href"] for each in items}
            for chapter in root.iterfind(".//{*}itemref"):
                place = unquote(places[chapter.attrib["idref"]])
                name = posixpath.join(posixpath.dirname(package), place)
                (body,) = ElementTree.fromstring(book.read(name)).iterfind("{*}body")
                yield "\n".join(body.itertext())
    except (zipfile.BadZipFile, ElementTree.ParseError, KeyError, ValueError) as error:
        raise UserError(f"{content.path} is damaged: {error}") from None
