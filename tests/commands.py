"""Commands as a user types them, and the Python that they write into a page."""

import re

from electra.cli import main


def run_command(capsys, *words):
    """Run a command in this process; return exit status, standard output and standard error."""
    status = 0
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


def succeed(capsys, *words):
    """Run a command that must succeed; return its output, `out` and `err`."""
    main([str(word) for word in words])
    return capsys.readouterr()


def refuse_command(words, capsys, *command):
    """Check that a command is refused with these words, whatever it says before."""
    status, _, err = run_command(capsys, *command)
    assert status == 2
    assert words in " ".join(err.splitlines()[-1].split())


def run_python_of(page, folder, monkeypatch):
    """Run the one block of Python of a page in a folder; return its names."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(folder)
    names = {}
    exec(compile(code, page.name, "exec"), names)
    return names
