"""Every measured number in README and docs, and where it comes from: `python -m tools.claims`.

results/claims.toml has a record for each sentence, or row of a table, with measured numbers;
docs/CLAIMS.md describes it.
"""

import json
import re
import statistics
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from electra.errors import UserError, require

RECORDS = Path("results", "claims.toml")
NUMBER = r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
UNIT = (
    r"(?:%|percent\b|points?\b|times\b|(?:ms|s|h|min|(?:second|minute|hour|day|week|core-hour)s?)\b"
    r"|(?:[kKMGT]i?B|bytes?)\b|TFLOP/s|(?:M |million )?\w+(?:/s\b| a second\b))"
)
MEASURED = (
    # a unit behind it, or behind a second number: 359 to 268 ms
    rf"{NUMBER}(?=(?: ?(?:to|and|or|of|against|from|/|,) ?{NUMBER})* ?{UNIT})",
    rf"{NUMBER}(?= ±)|(?<=± ){NUMBER}",
    r"-?\d[\d,]*\.\d+",
)
START, END = r"(?<![\w.,-])(?<!\d\.)", r"(?!\d|[.,]\d|e[-+]?\d)"
FINDERS = [re.compile(f"{START}(?:{each}){END}") for each in MEASURED]
VERSION_OF = re.compile(r"(?:Python|torch|transformers|SQuAD|release)(?: before)? $")
COMPARES = re.compile(
    r"\b(?:above|below|better|worse|faster|slower|as fast|the speed of|higher|lower|ahead|gains?)\b"
)
ADMITS = re.compile(r"\b(?:one seed|single runs|not separable|cannot be told|no difference)\b")
SENTENCE = re.compile(r"[.:;] |\|| - ")
"""What ends a sentence, or a cell."""
COMMITS = ("commit", "commits")
FEWEST_SEEDS = 3
CONFIDENCE = 0.95
KINDS = {
    "not kept": "measured once, and the file was not kept",
    "published": "of the paper or of others, cited as such",
    "computed": "computed, from what the sentence says",
    "limit": "a default, a limit or a bound that the code has",
    "setting": "a setting or a definition",
}
"""Why a number of `[[others]]` needs no file."""


def find_half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95% interval of a mean, by Student's t."""
    from scipy.stats import t as student  # takes a second

    quantile = float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / len(values) ** 0.5


AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    **{"mean": statistics.mean, "median": statistics.median, "std": statistics.stdev},
    **{"min": min, "max": max, "sum": sum, "len": len, "half_width": find_half_width},
}


class Comparison(NamedTuple):
    """A claimed gain over something else: its interval, and the number of seeds."""

    low: float
    high: float
    seeds: int


def check_claims(root: Path) -> tuple[list[str], Counter[str]]:
    """Return what is wrong with the claims and the pages, a line each, and what was counted.

    Args:
        root: The folder with README.md, docs/ and results/.

    Raises:
        UserError: results/claims.toml cannot be read, or lacks one of its lists.
    """
    path = root / RECORDS
    try:
        records = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    for name in ("claims", "others", "withdrawn"):
        require(name in records, f"{path} has no list {name!r}; write `{name} = []` if it is empty")
    pages = {path.relative_to(root).as_posix(): read_page(path) for path in find_pages(root)}
    covered: dict[str, list[tuple[int, int]]] = {name: [] for name in pages}
    problems: list[str] = []
    counts: Counter[str] = Counter()
    for claim in records["claims"]:
        try:
            spans = list(_check_claim(claim, pages, root / "results"))
        except (UserError, LookupError, TypeError, ValueError, ZeroDivisionError) as error:
            told = error if isinstance(error, UserError) else repr(error)
            problems.append(f"{claim.get('page', '?')}: {claim.get('text', '?')!r}: {told}")
            continue
        covered[claim["page"]] += spans
        counts.update({"claims": 1, "numbers": len(spans), "comparisons": "comparison" in claim})
    for other in records["others"]:
        spans = _find_other(other, pages, problems)
        covered.setdefault(other["page"], []).extend(spans)
        numbers = find_measured(pages.get(other["page"], ""))
        counts[other["kind"]] += sum(
            any(first <= start < last for first, last in spans) for start, _ in numbers
        )
    for name, text in pages.items():
        for start, end in find_measured(text):
            if not any(first <= start and end <= last for first, last in covered[name]):
                place = f"{text[max(start - 60, 0) : start]}>>{text[start:end]}<<{text[end:][:30]}"
                problems.append(f"{name}: no claim has the number in {place!r}")
    for each in records["withdrawn"]:
        if each["text"] in read_page(root / each["page"]):
            problems.append(f"{each['page']}: {each['text']!r} was withdrawn, and is there")
        counts["withdrawn"] += bool(each["why"])
    return problems, counts


def find_pages(root: Path) -> list[Path]:
    """Return README and the pages of docs/ but for those that a program writes."""
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return [page for page in pages if not page.read_bytes().startswith(b"<!-- written by")]


def read_page(path: Path) -> str:
    """Return a page as it is read: without blocks of code, links' targets and generated tables."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(text.replace("**", "").split())


def find_measured(text: str) -> list[tuple[int, int]]:
    """Return where the measured numbers of a page are, in their order.

    They are followed by a unit of time, size or rate, a %, "points" or "times", are next to a ±,
    or have a decimal point. Code between backquotes and versions are left out.
    """
    code = [match.span() for match in re.finditer(r"`[^`]*`", text)]
    found = {match.span() for finder in FINDERS for match in finder.finditer(text)}
    return sorted(
        (start, end)
        for start, end in found
        if not any(first <= start < last for first, last in code)
        and not VERSION_OF.search(text[max(start - 30, 0) : start])
    )


def _check_claim(
    claim: Mapping[str, Any], pages: Mapping[str, str], results: Path
) -> Iterator[tuple[int, int]]:
    """Yield where on its page the numbers of a claim are; a wrong claim is a UserError."""
    require(claim.get("page") in pages, f"there is no such page; there are {', '.join(pages)}")
    page, text = pages[claim["page"]], claim["text"]
    require(page.count(text) == 1, f"its page must have the text once, not {page.count(text)}x")
    begin, place = page.index(text), 0
    for number in claim["numbers"]:
        shown, value = number["shown"], _evaluate(number, claim, results)
        match = re.compile(f"{START}{re.escape(shown)}{END}").search(text, place)
        require(match is not None, f"{shown} is not there, behind the numbers before it")
        require(_rounds_to(value, shown), f"{shown} is shown, and the file has {value:.6g}")
        assert match
        place = match.end()
        yield begin + match.start(), begin + place
    _check_comparison(claim, _find_sentence(page, begin, begin + len(text)), results)
    _find_commits(claim, results)


def _rounds_to(value: float, shown: str) -> bool:
    digits = len(shown.partition(".")[2])
    return abs(value - float(shown.replace(",", ""))) <= 0.5000001 * 10**-digits


def _evaluate(quantity: Mapping[str, Any], claim: Mapping[str, Any], results: Path) -> float:
    """Return (field - minus) / over * times / per; minus and over are fields, or quantities."""
    values = _look_up(quantity, claim, results)
    value: float = AGGREGATES[quantity["of"]](values) if "of" in quantity else values
    for name, sign in (("minus", -1), ("over", 1)):
        if name in quantity:
            inner = quantity[name]
            if isinstance(inner, str):
                inner = {"field": inner, **({"of": quantity["of"]} if "of" in quantity else {})}
            defaults = {**claim, **({"file": quantity["file"]} if "file" in quantity else {})}
            other = _evaluate(inner, defaults, results)
            value = value - other if sign < 0 else value / other
    return float(value) * quantity.get("times", 1) / quantity.get("per", 1)


def _look_up(quantity: Mapping[str, Any], claim: Mapping[str, Any], results: Path) -> Any:
    name = quantity.get("file", claim.get("file"))
    require(bool(name), f"{quantity} names no file")
    require(not name.startswith("notes/"), f"{name} was typed by hand: name a file of a command")
    found = _resolve(_read(results / name), quantity["field"])
    is_list = isinstance(found, list)
    require(is_list or type(found) in (int, float), f"{quantity['field']} is no number: {found}")
    require(found != [], f"{quantity['field']} leads to nothing")
    require(is_list == ("of" in quantity), f"{quantity['field']}: a list needs `of`, a number none")
    return found


@cache
def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    return list(map(json.loads, text.splitlines())) if path.suffix == ".jsonl" else json.loads(text)


def _resolve(data: Any, field: str) -> Any:
    """Return what a path of keys, indices, `name=value&...`, `*` and `@mean` leads to."""
    step, _, rest = field.partition("/")
    if not step:
        return data
    if step.startswith("@"):
        return AGGREGATES[step[1:]](list(data.values() if isinstance(data, Mapping) else data))
    if step == "*":
        return [_resolve(each, rest) for each in (data.values() if type(data) is dict else data)]
    if isinstance(data, Mapping):
        require(step in data, f"no field {step!r}; there are {', '.join(map(str, data))}"[:300])
        return _resolve(data[step], rest)
    require(isinstance(data, list), f"nothing is below {step!r}: {data!r}"[:200])
    if "=" not in step:
        return _resolve(data[int(step)], rest)
    wanted = dict(pair.split("=", 1) for pair in step.split("&"))
    found = [row for row in data if all(str(row.get(k)) == v for k, v in wanted.items())]
    if rest.startswith("*/"):
        return [_resolve(row, rest[2:]) for row in found]
    require(len(found) == 1, f"{len(found)} records have {step!r}")
    return _resolve(found[0], rest)


def _find_sentence(page: str, start: int, end: int) -> str:
    """Return a part of a page with the rest of its sentence, or of its cell."""
    before = [match.end() for match in SENTENCE.finditer(page, 0, start)]
    after = SENTENCE.search(page, max(end - 1, start))
    return page[before[-1] if before else 0 : after.start() if after else len(page)]


def _check_comparison(claim: Mapping[str, Any], sentence: str, results: Path) -> None:
    """Refuse a claim beyond its interval and seeds, unless the sentence itself admits that."""
    if "comparison" not in claim:
        word = COMPARES.search(re.sub("`[^`]*`", "", sentence))
        is_free = word is None or ADMITS.search(sentence) or "no_comparison" in claim
        require(bool(is_free), f"says {word and word[0]!r}: name the interval under `comparison`")
        return
    for each in claim["comparison"]:
        found = _read_comparison(each, claim, results)
        interval = f"[{found.low:.4g}, {found.high:.4g}]"
        require(found.low > 0, f"the interval of its gain, {interval}, is not above 0")
        require(
            found.seeds >= FEWEST_SEEDS,
            f"{found.seeds} seeds are fewer than {FEWEST_SEEDS}: the sentence must say so",
        )


def _as_quantity(quantity: Any) -> dict[str, Any]:
    """Return a record of a quantity, which may be its field alone."""
    return {"field": quantity} if isinstance(quantity, str) else dict(quantity)


def _read_comparison(
    comparison: Mapping[str, Any], claim: Mapping[str, Any], results: Path
) -> Comparison:
    """Return the stored interval of a gain, or Welch's over the values of two lists."""
    if "gain" in comparison:
        gain, half, seeds = (
            _evaluate(_as_quantity(comparison[name]), {**claim, **comparison}, results)
            for name in ("gain", "half_width", "seeds")
        )
        gain *= comparison.get("sign", 1)
        return Comparison(gain - half, gain + half, int(seeds))
    from scipy.stats import ttest_ind  # takes a second

    lists = []
    for name in ("more", "less"):
        quantity = {"of": "mean", **_as_quantity(comparison[name])}
        lists.append(_look_up(quantity, claim, results))
    fewest = min(map(len, lists))
    require(fewest > 1, "one value has no interval: the sentence must say `one seed`")
    interval = ttest_ind(*lists, equal_var=False).confidence_interval(CONFIDENCE)
    return Comparison(interval.low, interval.high, fewest)


def _find_commits(claim: Mapping[str, Any], results: Path) -> list[str]:
    """Return the commits of the claim's files: each has one, or a manifest beside it does."""
    commits: dict[str, None] = {}
    for name in _name_files(claim):
        path = results / name
        beside = (path.with_name("manifest.json"), path.parent.parent / "manifest.json")
        files = [path, *(each for each in beside if each.is_file())]
        found = [commit for file in files for commit in _gather(_read(file), COMMITS)]
        require(bool(found), f"{name} has no commit, nor has a manifest.json beside it")
        commits |= dict.fromkeys(found)
    return list(commits)


def _name_files(claim: Mapping[str, Any]) -> list[str]:
    """Return the files of a claim's numbers and comparisons, each once."""
    parts = {name: claim.get(name, ()) for name in ("file", "numbers", "comparison")}
    return list(dict.fromkeys(_gather(parts, ("file",))))


def _gather(data: Any, names: Sequence[str]) -> Iterator[str]:
    """Yield the texts under one of some names, at any depth."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key in names and value:
                yield from [value] if isinstance(value, str) else value
            else:
                yield from _gather(value, names)
    elif isinstance(data, list):
        for each in data:
            yield from _gather(each, names)


def _find_other(
    other: Mapping[str, str], pages: Mapping[str, str], problems: list[str]
) -> list[tuple[int, int]]:
    """Return the place of a number without a file; add what is wrong to `problems`."""
    page, phrase = pages.get(other["page"], ""), other["phrase"]
    spans = [match.span() for match in re.finditer(re.escape(phrase), page)]
    if not spans:
        problems.append(f"{other['page']}: {phrase!r} of [[others]] is not there")
    if other["kind"] not in KINDS or not other.get("why"):
        kinds = ", ".join(map(repr, KINDS))
        problems.append(f"{other['page']}: {phrase!r} needs `why`, and one of the kinds {kinds}")
    return spans


def list_claims(root: Path) -> Iterator[str]:
    """Yield a line for each claim: page, text, files and commits."""
    records = tomllib.loads((root / RECORDS).read_text(encoding="utf-8"))
    for claim in records["claims"]:
        commits = " ".join(each[:10] for each in _find_commits(claim, root / "results"))
        yield f"{claim['page']}: {claim['text']}\n    {', '.join(_name_files(claim))}: {commits}"


def main() -> None:
    """Check the claims of this folder; print what is wrong, and what was counted, or all claims."""
    if sys.argv[1:] == ["--list"]:
        print("\n".join(list_claims(Path())))
        return
    problems, counts = check_claims(Path())
    for problem in problems:
        print(problem, file=sys.stderr)
    print(
        f"{counts['claims']} claims with {counts['numbers']} numbers, {counts['comparisons']} of "
        f"them comparisons; {counts['withdrawn']} withdrawn",
        "Numbers without a file:",
        *(f"{counts[kind]:4} {kind}: {why}" for kind, why in KINDS.items()),
        sep="\n",
    )
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
