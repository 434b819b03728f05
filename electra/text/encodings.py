"""The encoding of a text: from its byte-order mark, else UTF-8 if valid, else from chardet."""

import codecs
import re
from collections.abc import Collection, Sequence

from electra.errors import UserError, import_extra
from electra.text.streams import UTF8, find_mark, looks_utf8

CANDIDATES = ["cp949", "cp932", "euc-jp", "gb18030", "big5", "cp1251", "koi8-r", "cp1252"]
CANDIDATES += ["cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp874"]
"""Korean, Japanese, Chinese, Cyrillic, Western and Central European, Greek, Turkish, Hebrew, Arabic
and Thai; each holds the older encodings of its script, such as EUC-KR, Shift_JIS and Latin-1."""
OTHER_SCRIPTS = ("cp1251", "koi8-r", "cp1253", "cp1255", "cp1256", "cp874")
MIXED_WORDS = 0.4
"""Share of words from which on letters of ASCII beside others of OTHER_SCRIPTS say Latin script."""
WESTERN = [
    *("àâæçéèêëîïôœùûüÿ", "äöüßé", "áéíñóúüªº", "ãõáéíóúâêôàçªº", "åäöæøéü", "áðéíóúýþæö"),
    *("àèéìíòóùú", "éëïöüèáóú"),
]
CENTRAL = ["ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "ăâîşţ", "čćđšž"]
"""Letters beyond ASCII of the languages of cp1252 and of cp1250."""
ONLY_CENTRAL = set("".join(CENTRAL)) - set("".join(WESTERN)) - set("ďĺŕ")
"""Letters of CENTRAL alone, without some that are seldom: their bytes are the common ï, å and à."""
NO_WORD = re.compile("[a-zß-ÿ](?:[£¥¯³¹º¼¾¿][a-zß-ÿ]|[Ÿ\ufffd])")
"""Never inside a word of cp1252: a sign, which is ł, ą, ż or ľ in cp1250, or a capital: ź."""
NO_POLISH = re.compile("ś[aeiouyóąę]")
"""In no Polish word, which writes si before a vowel: œ in cp1252, as in cœur."""


def detect(first: bytes) -> str:
    """Return the encoding of a text that begins with these bytes; "" if it is no text."""
    if mark := find_mark(first):
        return mark
    if b"\0" in first:
        return ""
    return UTF8 if looks_utf8(first) else guess(first)


def guess(first: bytes) -> str:
    """Return which of CANDIDATES a text without marks is in; "" if it is in none."""
    purpose = "detecting the encoding (or set it: --set encoding=NAME)"
    chardet = import_extra("chardet", "encodings", purpose)
    # Lines of English say nothing. The last line may end within a character.
    lines = [line for line in first[: first.rfind(b"\n") + 1].split(b"\n") if not line.isascii()]
    whole = b"\n".join(lines) or first
    try:
        name = chardet.detect(whole, include_encodings=CANDIDATES)["encoding"]
    except TypeError:
        raise UserError(f"{purpose} needs chardet 7: pip install --upgrade chardet") from None
    return _settle_latin(whole, codecs.lookup(name).name if name else "")


def _settle_latin(whole: bytes, best: str) -> str:
    """Return the detected encoding; for Latin script cp1252, unless cp1250 fits better."""
    # A name such as Wałęsa, which is Wa³êsa in cp1252, decides alone. A text that fits both needs
    # two Central European words, because a few accents within English are weak evidence.
    if best in OTHER_SCRIPTS:
        words = _words_beyond_ascii(whole, best)
        is_mixed = sum(re.search("[a-zA-Z]", word) is not None for word in words)
        if not words or is_mixed < MIXED_WORDS * len(words):
            return best
    elif best not in ("cp1250", "cp1252"):
        return best
    runs = re.findall(r"[^\s\x00-\x40]{4,}", whole.decode("cp1252", "replace"))  # x³y is none
    are_none = [NO_WORD.search(word) is not None for word in runs if not word.isascii()]
    if any(are_none) and 2 * sum(are_none) >= len(are_none):
        return "cp1250"
    western, central = _words_beyond_ascii(whole, "cp1252"), _words_beyond_ascii(whole, "cp1250")
    shares = _fit(western, WESTERN), _fit(central, CENTRAL)
    certain = [
        word
        for word in central - western
        if not ONLY_CENTRAL.isdisjoint(word) and not NO_POLISH.search(word)
    ]
    is_tie = shares[1] == shares[0] and best == "cp1250"
    is_central = best != "cp1252" and (shares[1] > shares[0] or (is_tie and len(certain) > 1))
    return "cp1250" if is_central else "cp1252"


def _words_beyond_ascii(text: bytes, encoding: str) -> set[str]:
    """Return the words of a text that are not ASCII alone."""
    words = re.findall(r"\w+", text.decode(encoding, "replace").lower())
    return {word for word in words if not word.isascii()}


def _fit(words: Collection[str], alphabets: Sequence[str]) -> float:
    """Return the share of the letters beyond ASCII that one of the alphabets has."""
    letters = [each for word in words for each in word if not each.isascii() and each.isalpha()]
    counts = [sum(each in alphabet for each in letters) for alphabet in alphabets]
    return max(counts) / len(letters) if letters else 0.0
