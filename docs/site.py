"""The site's pages that are made from other files; mkdocs calls the functions below by their names.

README.md is the first page, and CONTRIBUTING.md, CHANGELOG.md and the files of results/ that pages
lead to are also pages. Links to source files lead to copies. The verbs come from the command line,
the settings from config.py, and the library from the docstrings. A new page in docs/ is taken up by
itself, with the guides unless SECTIONS names it.
"""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from electra.cli import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
"""Pages in the top folder, and their places in the site."""
ROOMS = ("method", "model", "text", "tokenizing", "shards", "training", "checkpoints", "interop")
ROOMS += ("tasks", "pretraining", "finetuning", "inference")
SECTIONS: dict[str, list[str]] = {
    "Start": ["index.md", "CONCEPTS.md", "MIGRATING.md"],
    "Guides": ["KOREAN.md", "DOMAIN.md", "DEBERTA.md", "BABYLM.md", "TASK.md", "CORPUS.md"]
    + ["RETRIEVAL.md"]
    + ["TOKENIZERS.md", "SERVING.md", "REPRODUCE.md", "GPUS.md", "TRILLION.md", "RELIABILITY.md"]
    + ["TROUBLE.md"],
    "Reference": ["ARTEFACTS.md", "verbs.md", "settings.md", "LIBRARY.md", "ARCHITECTURES.md"]
    + ["CLIENTS.md"],
    "Results": ["CLAIMS.md"],
    "How it is built": [
        "ARCHITECTURE.md",
        "EXTENDING.md",
        "OBJECTIVES.md",
        "DEVIATIONS.md",
        "PERFORMANCE.md",
    ]
    + ["CONTRIBUTING.md", "CHANGELOG.md"],
}
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation: the sections, with pages that are in none of them among the guides."""
    pages = {path.name for path in DOCS.glob("*.md")} | {*TOP.values(), "verbs.md", "settings.md"}
    sections = {
        title: [page for page in named if page in pages] for title, named in SECTIONS.items()
    }
    named = {page for each in sections.values() for page in each}
    sections["Guides"] += sorted(pages - named)
    sections["Reference"] += [f"library/{room}.md" for room in ROOMS]
    linked = sorted(f"results/{path.name}" for path in (ROOT / "results").glob("*.md"))
    sections["Results"] += linked
    config.nav = [{title: list(pages)} for title, pages in sections.items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and whatever pages lead to outside docs/."""

    def add(place: str, content: str) -> None:
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, content=content))

    for source, place in TOP.items():
        add(place, _move((ROOT / source).read_text(), ROOT, place))
    for path in (ROOT / "results").glob("*.md"):
        text = _move(path.read_text(), path.parent, f"results/{path.name}")
        title = "" if text.startswith("# ") else f"# {path.stem}\n\n"
        add(f"results/{path.name}", title + text)
    add("verbs.md", _describe_verbs())
    add("settings.md", _describe_settings())
    for room in ROOMS:
        add(f"library/{room}.md", _describe_room(room))
    sources = [*DOCS.glob("*.md"), *(ROOT / each for each in TOP)]
    for source in sources:  # grows by the pages outside docs/, whose pictures belong to the site
        for target in _find_outside(source):
            place = _place(target)
            if target.suffix == ".md" and target not in sources:
                sources.append(target)
            if target.is_dir():
                add(place, _list_folder(target, files, config))
            elif target.suffix == ".md":
                add(place, _move(target.read_text(), target.parent, place))
            elif target.suffix == ".py":
                code = target.read_text()
                add(place, f"# {target.relative_to(ROOT)}\n\n```python\n{code}\n```\n")
            elif files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links of pages in docs/ to the places in the site of files outside."""
    source = DOCS / page.file.src_uri
    return _move(markdown, DOCS, page.file.src_uri) if source.is_file() else markdown


def _find_outside(source: Path) -> list[Path]:
    """Return the files and folders outside docs/ that a page's links lead to."""
    found = []
    for _, link, _ in LINK.findall(source.read_text()):
        target = (source.parent / link).resolve()
        is_ours = "://" not in link and target.is_relative_to(ROOT) and target.exists()
        if is_ours and not target.is_relative_to(DOCS) and str(target.relative_to(ROOT)) not in TOP:
            found.append(target)
    return found


def _place(target: Path) -> str:
    """Return the place in the site of a file or folder of the project."""
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        return f"{name}.md"
    return TOP.get(name, f"{name}.md" if target.suffix == ".py" else name)


def _move(markdown: str, folder: Path, place: str) -> str:
    """Return a page of a folder of the project with links that hold at its place in the site."""
    up = "../" * place.count("/")

    def lead(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if "://" in match[2] or not target.exists() or not target.is_relative_to(ROOT):
            return match[0]
        return f"{match[1]}{up}{_place(target)}{match[3]}"

    return LINK.sub(lead, markdown)


def _list_folder(folder: Path, files: Files, config: MkDocsConfig) -> str:
    """Return a page that lists the files of a folder, which become files of the site."""
    lines = [f"# {folder.name}", "", "The files of this folder, as the commands wrote them.", ""]
    for path in sorted(folder.rglob("*.json*")):
        place = path.relative_to(ROOT).as_posix()
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(path)))
        lines.append(f"- [{path.relative_to(folder)}]({path.relative_to(folder.parent)})")
    return "\n".join(lines)


def _describe_verbs() -> str:
    """Return every command with its parameters, from its own help."""
    text = app.generate_docs(output_format="markdown", recursive=True, include_hidden=False)
    # Headings are linked by their names, which the table of contents makes itself.
    text = re.sub(r"^## Table of Contents.*?(?=^## )", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\[`?--(\w+)`?\]\(#[^)]*\)", r"`--\1`", text)


def _describe_settings() -> str:
    """Return every setting: name, default, bounds, and the string below the field."""
    lines = ["# Settings", "", "Every setting is one field of a dataclass, in a `config.py`."]
    lines.append("`--set section.field=value` or a line of a TOML file changes it.")
    files = sorted((ROOT / "electra").glob("*/*config.py"))
    for node in [node for path in files for node in ast.parse(path.read_text()).body]:
        if not isinstance(node, ast.ClassDef) or not node.name.endswith("Config"):
            continue
        lines += ["", f"## {node.name}", "", " ".join((ast.get_docstring(node) or "").split()), ""]
        lines += ["| setting | default | meaning |", "| --- | --- | --- |"]
        for field, below in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(field, ast.AnnAssign) or "ClassVar" in ast.unparse(field.annotation):
                continue
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            meaning = " ".join(str(below.value.value).split()) if is_text else ""
            value = ast.unparse(field.value) if field.value else "by the preset"
            kind = ast.unparse(field.annotation)
            kind = re.sub(r"Annotated\[(.*), AtLeast\((.*)\)\]", r"\1 >= \2", kind)
            kind = re.sub(r"Annotated\[(.*), Within\('(.*)'\)\]", r"\1 in \2", kind)
            cells = [f"`{field.target.id}`", f"`{value}`", f"{meaning} ({kind})"]
            lines.append("| " + " | ".join(_escape(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def _describe_room(room: str) -> str:
    """Return the docstrings of all modules of a room."""
    modules = [
        path for path in sorted((ROOT / "electra" / room).glob("*.py")) if path.stem[0] != "_"
    ]
    lines = [
        f"# electra.{room}",
        "",
        ast.get_docstring(ast.parse((ROOT / "electra" / room / "__init__.py").read_text())) or "",
    ]
    return "\n".join([*lines, *(f"\n::: electra.{room}.{path.stem}\n" for path in modules)])
