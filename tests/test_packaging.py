"""What the container and the pages install is what the package has."""

import importlib
import inspect
import json
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import electra
from bootstrap import DEFAULT_TORCH
from electra.cli import app
from electra.verbs.serving import serve

ROOT = Path(electra.__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
ARTEFACTS = (ROOT / "docs" / "ARTEFACTS.md").read_text()
SERVING = (ROOT / "docs" / "SERVING.md").read_text()
NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def read_lines(word):
    return re.findall(rf"^{word} (.*)$", DOCKERFILE, re.MULTILINE)


def test_extras_that_are_named_exist():
    extras = set(PROJECT["optional-dependencies"])
    for path in (ROOT / "Dockerfile", ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for names in re.findall(r"pip install[^`\n]*\[([\w,-]+)\]", path.read_text()):
            assert set(names.split(",")) <= extras, path.name
    listed = re.search(r"are installed as extras:.*?\n\n", ARTEFACTS, re.DOTALL)[0]
    assert set(re.findall(r"`([a-z-]+)`", listed)) == extras - {"dev"}


def test_a_wheel_has_every_file_of_the_package():
    patterns = SETTINGS["tool"]["setuptools"]["package-data"]["electra"]
    found = {path for pattern in patterns for path in (ROOT / "electra").glob(pattern)}
    named = {path for path in found if path.is_file()}
    files = {path for path in (ROOT / "electra").rglob("*") if path.is_file()}
    others = {path for path in files if path.suffix not in (".py", ".pyc")}
    assert named == others


def test_the_command_is_where_the_package_says():
    module, _, name = PROJECT["scripts"]["electra"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_container_serves_as_an_ordinary_user():
    (entry,), (given,) = read_lines("ENTRYPOINT"), read_lines("CMD")
    shell, option, line, _ = json.loads(entry)
    assert (shell, option) == ("sh", "-c")
    (setting,) = read_lines("ENV")
    words = shlex.split(line.replace("$PORT", setting.partition("=")[2]))
    assert (words.pop(0), words.pop(0), words.pop()) == ("exec", "electra", "$@")
    words += json.loads(given)
    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    assert bound.arguments["host"] == "0.0.0.0"
    assert bound.arguments["port"] == inspect.signature(serve).parameters["port"].default
    assert read_lines("EXPOSE") == ["$PORT"]
    (user,) = read_lines("USER")
    assert f"useradd --create-home {user}" in DOCKERFILE
    copied = [each for line in read_lines("COPY") for each in line.split()[:-1]]
    assert {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "electra"} == {*copied}
    assert all((ROOT / each).exists() for each in copied)
    (image,) = read_lines("FROM")
    python = tuple(map(int, re.search(r"python:(\d+)\.(\d+)", image).groups()))
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert python >= tuple(map(int, oldest.split(".")))


def test_the_health_check_of_the_container_follows_the_port():
    check = json.loads(read_lines("HEALTHCHECK")[0].partition("CMD ")[2])
    line = check[-1].replace("python -c", f"{sys.executable} -c")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        asked = subprocess.Popen([*check[:-1], line], env={**os.environ, "PORT": str(port)})
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100).startswith(b"GET /ready HTTP/1.1")
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert asked.wait(60) == 0
    refused = subprocess.run(
        [*check[:-1], line], env={**os.environ, "PORT": str(port)}, stderr=subprocess.DEVNULL
    )
    assert refused.returncode != 0


def read_sample(language):
    """The one block of a language in the page about the service."""
    (sample,) = re.findall(rf"^```{language}\n(.*?)^```", SERVING, re.MULTILINE | re.DOTALL)
    return sample


@pytest.mark.skipif(not NGINX or not shutil.which("openssl"), reason="no nginx or no openssl here")
def test_nginx_takes_the_sample(tmp_path):
    sample = read_sample("nginx")
    pair = re.findall(r"ssl_certificate(?:_key)? (.*);", sample)
    for name, own in zip(pair, ("cert", "key"), strict=True):
        sample = sample.replace(name, str(tmp_path / own))
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a"]
    words += ["-out", str(tmp_path / "cert"), "-keyout", str(tmp_path / "key")]
    subprocess.run(words, check=True, capture_output=True)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{each}_temp_path {tmp_path / each};\n" for each in kinds)
    whole = f"pid {tmp_path / 'pid'};\nevents {{}}\nhttp {{\n{places}access_log off;\n{sample}}}\n"
    (tmp_path / "nginx.conf").write_text(whole)
    words = [NGINX, "-t", "-p", tmp_path, "-c", tmp_path / "nginx.conf"]
    checked = subprocess.run([*words, "-e", "stderr"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_takes_the_sample(tmp_path):
    sample = read_sample("ini")
    (line,) = re.findall(r"^ExecStart=(.*)$", sample, re.MULTILINE)
    program, *words = line.split()
    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    assert bound.arguments["token_file"].name == "token"
    (tmp_path / "electra.service").write_text(sample.replace(program, "/bin/true"))
    words = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "electra.service")]
    checked = subprocess.run(words, capture_output=True, text=True)
    own = [each for each in checked.stderr.splitlines() if "electra.service" in each]
    assert (checked.returncode, own) == (0, []), checked.stderr


def test_constraints_have_every_dependency_with_hashes_and_no_host():
    text = (ROOT / "constraints.txt").read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    versions = {}
    for entry in entries:
        name, version = re.match(r"([\w-]+)==([\w.]+)", entry).groups()
        versions.setdefault(name, []).append(Version(version))
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), name
    for each in map(Requirement, PROJECT["dependencies"]):
        assert all(version in each.specifier for version in versions[each.name]), each
    assert [str(each) for each in versions["torch"]] == [DEFAULT_TORCH]
    assert "://" not in text


def test_workflows_are_valid(tmp_path):
    """By the schema that check-jsonschema brings; actionlint has no wheel, and loads its binary."""
    pytest.importorskip("check_jsonschema")
    files = sorted((ROOT / ".github" / "workflows").iterdir())
    words = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(files[0].read_text().replace("runs-on:", "runs-in:"))
    words += ["--output-format", "json", *files, wrong]
    told = json.loads(subprocess.run(words, capture_output=True, check=False).stdout)
    assert {each["filename"] for each in told["errors"]} == {str(wrong)}


def build(source, out):
    words = ["wheel", str(source), "--no-deps", "--no-build-isolation", "--wheel-dir", str(out)]
    subprocess.run([sys.executable, "-m", "pip", "-q", *words], check=True)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        return packed.read("electra/commit.txt").decode()


def read_materials(wheel):
    (path,) = [name for name in zipfile.ZipFile(wheel).namelist() if "/sboms/" in name]
    assert path.endswith(".dist-info/sboms/electra.cdx.json")
    return json.loads(zipfile.ZipFile(wheel).read(path))


def test_the_bill_of_materials_is_cyclonedx_and_names_all_that_is_required():
    materials = runpy.run_path(str(ROOT / "setup.py"))["describe"]()
    required = {re.match(r"[\w-]+", each)[0] for each in PROJECT["dependencies"]}
    encoders = {path.name for path in (ROOT / "electra" / "encoders").iterdir()}
    assert {each["name"] for each in materials["components"]} == required | encoders
    validation = pytest.importorskip("cyclonedx.validation.json")
    version = importlib.import_module("cyclonedx.schema").SchemaVersion.V1_6
    validator = validation.JsonStrictValidator(version)
    assert validator.validate_str(json.dumps(materials)) is None
    materials["components"][0]["type"] = "a thing"
    assert validator.validate_str(json.dumps(materials)) is not None


@pytest.mark.slow
def test_a_wheel_knows_its_commit(tmp_path):
    """Built in the repository, and, to the byte, from the source archive, which has no .git."""
    source = tmp_path / "source"
    names = ["pyproject.toml", "setup.py", "README.md", "LICENSE"]
    shutil.copytree(ROOT / "electra", source / "electra", ignore=shutil.ignore_patterns("*.pyc"))
    for name in names:
        shutil.copy(ROOT / name, source)
    git = ["git", "-C", source, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    said = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    commit = said.stdout.strip()
    assert build(source, tmp_path / "first") == commit
    command = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path)]
    subprocess.run(command, check=True, cwd=source)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    (unpacked / "electra" / "version.py").touch()  # dates do not count
    assert build(unpacked, tmp_path / "second") == commit
    first, second = (next((tmp_path / name).glob("*.whl")) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert read_materials(first)["metadata"]["component"]["name"] == PROJECT["name"]
    with (source / "electra" / "version.py").open("a") as file:
        file.write("# changed\n")
    assert build(source, tmp_path / "third").startswith(f"{commit}+changes-")
