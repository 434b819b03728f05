import io
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.text import Text

from electra.errors import UserError, command
from electra.reports.tokens import TokenView
from electra.terminal.live import BEFORE, Display, Progress, format_passes, record_line
from electra.terminal.printing import (
    print_done,
    print_error,
    print_note,
    print_plan,
    print_table,
    print_tokens,
    printable,
)

MEASURES = {
    **{"step": 1000, "mlm_loss": 10.906, "mlm_accuracy": 0.341, "sampled_accuracy": 0.212},
    **{"replaced_rate": 0.118, "disc_loss": 0.2966, "constant_disc_loss": 0.3634},
    **{"disc_auc": 0.805, "loss": 19.0},
}
HELDOUT = MEASURES | {"part": "heldout"}
TRAIN = MEASURES | {
    **{"part": "train", "tokens": 7_000_000, "seconds": 500.0, "tokens_per_second": 14_040.0},
    **{"seconds_left": 185.0, "learning_rate": 4.5e-4, "grad_norm": 1.04},
}


def strip(text):
    """Return all that was ever written, less colours and movements."""
    return Text.from_ansi(text.replace("\r", "\n")).plain


def test_plain_mode_prints_one_line_a_record_with_all_its_numbers(capsys):
    with Display(steps=10_000) as display:
        for _ in range(30):
            display.show(TRAIN)
        display.show(HELDOUT)
    output = capsys.readouterr()
    assert output.out == ""
    lines = output.err.splitlines()
    assert all(len(line) <= 80 for line in lines)
    records = [line.split() for line in lines if not line.startswith("#")]
    numbers = ["10.906", "0.341", "0.212", "0.118", "0.2966", "0.3634", "0.805"]
    assert records[:30] == [["1000", "14.0k", "3m05s", *numbers, "4.5e-4", "1.04"]] * 30
    assert records[30:] == [["1000", "-", "heldout", *numbers, "-", "-"]]
    # The header comes again, so that it is never far above.
    assert sum(line.endswith("grad") for line in lines) == 2


BEGIN = {"part": "begin", "step": 0, "tokens": 81_920_000, "passes": {"the text": 52.3}}


def test_passes_over_the_text_are_in_the_first_line_and_the_title(capsys, open_terminal):
    with Display(steps=10_000) as display:
        display.show(BEGIN)
        display.show(TRAIN)
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "# Pre-training: 10,000 steps, 81.9M tokens, 52 passes over the text."
    mixed = format_passes({"wiki": 0.0312, "books": 3.44})
    assert mixed == "0.031 passes over wiki, 3.4 passes over books"
    terminal = open_terminal()
    with Display(steps=10_000) as display:
        display.show(BEGIN)
        display.show(TRAIN)
    assert "Pre-training · 52 passes over the text" in strip(terminal.getvalue())


def test_a_wait_for_the_compiler_is_told_and_no_record(capsys, open_terminal):
    with Display(steps=10) as display:
        display.show(BEGIN)
        display.show({"part": "compiling", "step": 0})
        display.show(TRAIN)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "compile" in line] == [f"# {BEFORE['compiling']}"]
    assert sum(line.startswith(("# Pre-training", "# Learning")) for line in lines) == 2
    terminal = open_terminal()
    with Display(steps=10) as display:
        display.show({"part": "compiling", "step": 0})
        assert BEFORE["compiling"] in strip(terminal.getvalue())
        display.show(TRAIN)
    assert BEFORE["compiling"] not in strip(terminal.getvalue()).split("╭")[-1]


def test_plain_columns_keep_their_place_for_any_number(capsys):
    wide = TRAIN | {"step": 1_000_000, "tokens_per_second": 1.2e6, "seconds_left": 20 * 86_400.0}
    wide |= {"learning_rate": 9.96e-5, "grad_norm": 1234.5, "disc_auc": None}
    with Display(steps=10_000) as display:
        display.show(TRAIN)
        display.show(wide)
        display.show(HELDOUT | {"mlm_loss": float("nan")})
    lines = [line for line in capsys.readouterr().err.splitlines() if line[0] != "#"]
    assert {len(line) for line in lines} == {78}
    assert {len(line.split()) for line in lines} == {12}
    causal = {"step": 1, "part": "heldout", "lm_loss": 5.25, "lm_accuracy": 0.125}
    assert " 5.250 0.125 " in record_line(causal)


def test_plain_mode_has_no_control_characters_even_with_forced_colour(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Display(steps=10) as display, Progress("prepare", unit="bytes") as progress:
        display.show(TRAIN)
        progress.update(1e6, 2e6)
    assert "\x1b" not in capsys.readouterr().err


def test_the_panel_shows_train_beside_held_out_in_80_columns(open_terminal):
    terminal = open_terminal()
    with Display(steps=10_000, title="tiny [bold] \x1b[2J") as display:
        display.show(TRAIN)
        display.show(HELDOUT | {"disc_loss": 0.5})
    assert_fits(terminal)
    last = strip(terminal.getvalue()).split("╭")[-1]
    assert "tiny [bold] \N{REPLACEMENT CHARACTER}[2J" in last
    for text in ("step 1,000 of 10,000", "14.0k tokens/s", "3m05s left", "10%", "1.04", "4.50e-04"):
        assert text in last
    for line in ("disc_loss 0.2966 0.5000", "constant predictor 0.3634 0.3634"):
        assert line in " ".join(last.split())
    assert "held-out at step 1,000" in last


def test_a_narrow_terminal_is_not_broken(open_terminal):
    terminal = open_terminal(columns=50)
    with Display(steps=10_000) as display:
        display.show(TRAIN)
    assert_fits(terminal, 50)
    assert "disc_auc" in terminal.getvalue()


def assert_fits(terminal, columns=80):
    assert all(cell_len(line) <= columns for line in strip(terminal.getvalue()).splitlines())


def test_an_interrupt_gives_the_cursor_back(open_terminal):
    terminal = open_terminal()
    with suppress(KeyboardInterrupt), Display(steps=10_000) as display:
        display.show(TRAIN)
        raise KeyboardInterrupt
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")
    assert terminal.getvalue().endswith(("\n", "\x1b[?25h"))


def test_results_reach_a_file_while_progress_is_on_the_terminal(open_terminal, monkeypatch):
    open_terminal()
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    with Display(steps=10):
        print("a result")  # noqa: T201
    assert file.getvalue() == "a result\n"


def test_a_name_is_never_an_option_of_the_next_command():
    assert command("export", Path("-a b"), "-t", Path("--c"), "--out", "-") == (
        "electra export './-a b' ./-t ./--c --out ./-"
    )


@pytest.mark.parametrize(
    "url",
    ["http://ann:SE@CRET@host/x", "s3:/:SECRET@host", "a://b:S:E@c", "http://ann:/SE/C/RET@host/x"]
    + ["https:/ann:1a/SE@host:80/x", "s3://ann:SE//CR@E/T@host"],
)
def test_no_password_of_a_url_is_printed(capsys, url):
    print_done(f"wrote {url}", command("prepare", url, "--out", "shards"))
    print_note(f"{url} is slow")
    print_error(str(UserError(f"no file {url}")))
    said = "".join(capsys.readouterr())
    assert said.count(":***@") == 4
    assert "SE" not in said
    plain = "http://host:80/a@b, 12:30 ann@host"
    assert printable(plain) == plain


def test_progress_says_how_much_is_left(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr("electra.terminal.live.time.monotonic", lambda: now)
    with Progress("prepare", unit="bytes") as progress:
        progress.update(1e6, 368e6)  # too early to show
        now = 60.0
        progress.update(92e6, 368e6, "21,000,000 tokens")
        progress.update(93e6, 368e6, "too early again")
        now = 70.0
        progress.update(368e6, 368e6, "85,000,000 tokens")
    assert capsys.readouterr().err.splitlines() == [
        "prepare  25%  92.0 of 368.0 MB | 3m00s left | 21,000,000 tokens",
        "prepare 100%  368.0 of 368.0 MB | 1m10s | 85,000,000 tokens",
    ]


def test_what_was_done_before_an_interrupt_says_nothing_of_the_time_left(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("electra.terminal.live.time.monotonic", lambda: now[0])
    with Progress("prepare", unit="pieces") as progress:
        for now[0], done in ((10, 800), (20, 810), (40, 830)):
            progress.update(done, 1000)
    lefts = [line.split(" | ")[1] for line in capsys.readouterr().err.splitlines()]
    assert lefts == ["2s left", "3m10s left", "2m50s left"]


def test_progress_shows_its_last_word_and_lives_without_a_total(capsys):
    with Progress("read", unit="tokens") as progress:
        progress.update(10, None)
        progress.update(2000, None, "from standard input")
    assert capsys.readouterr().err == "read  2,000 tokens | 0s | from standard input\n"
    progress.update(20, 20, "and more")  # told at once: what follows may take long
    assert "100%  20 of 20 tokens | 0s | and more\n" in capsys.readouterr().err


def test_progress_of_a_small_amount_has_decimals(capsys):
    for done, total in ((0.123, 0.5), (3, 50), (123.4, 567.8)):
        with Progress("reproducing", unit="TFLOP") as progress:
            progress.update(done, total)
    amounts = [line.split(" | ")[0] for line in capsys.readouterr().err.splitlines()]
    assert amounts == [
        "reproducing  25%  0.12 of 0.50 TFLOP",
        "reproducing   6%  3 of 50 TFLOP",
        "reproducing  22%  123 of 568 TFLOP",
    ]


def test_progress_on_a_terminal_fits_into_it(open_terminal):
    terminal = open_terminal()
    with Progress("fine-tune cola", unit="steps") as progress:
        progress.update(3, 10, "a note that is far too long for one line " * 3)
    shown = strip(terminal.getvalue())
    assert "30%" in shown
    assert_fits(terminal)


def test_a_table_is_plain_when_piped(capsys):
    print_table([["cola", 0.5, "[red]"], ["sst2 東京", -12.25, "x"]], ["task", "mcc", "note"])
    assert capsys.readouterr().out == (
        "task          mcc  note\n"
        "---------  ------  -----\n"
        "cola          0.5  [red]\n"
        "sst2 東京  -12.25  x\n"
    )  # fmt: skip


def test_a_table_on_a_terminal_is_ruled_and_fits(open_terminal):
    terminal = open_terminal()
    print_table([["x" * 100, 1], ["[red]\x1b", 2]], ["name", "count"])
    shown = strip(terminal.getvalue())
    assert "╭" in shown
    assert "[red]\N{REPLACEMENT CHARACTER}" in shown
    assert_fits(terminal)
    assert shown.count("x") == 100


SENTENCE = [
    *(TokenView(word, word, False, 0.02) for word in ["the", "東京", "chef"]),
    TokenView("ate", "cooked", True, 0.914),
    *(TokenView(word, word, False, 0.62) for word in ["the", "[red]meal[/red]", "\x1b[2J"] * 6),
]


def test_tokens_are_legible_without_colour(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_tokens(SENTENCE[:4])
    assert capsys.readouterr().out.splitlines() == [
        "original                 cooked",
        "sentence   the 東京 chef [ate]",
        "replaced?  2%  2%   2%   91%",
        "1 replaced: 1 caught, 0 missed; 0 false alarms",
    ]


def test_a_long_sentence_wraps_in_blocks(open_terminal):
    terminal = open_terminal()
    print_tokens(SENTENCE)
    shown = strip(terminal.getvalue())
    assert_fits(terminal)
    assert shown.count("sentence") > 1
    assert shown.count("[red]meal[/red]") == 6
    assert "\x1b[2J" not in terminal.getvalue()
    assert "\x1b[1;32m" in terminal.getvalue()  # caught: green, where there is colour


def test_an_empty_sentence_is_no_trouble(capsys):
    print_tokens([])
    assert "0 replaced" in capsys.readouterr().out


def test_last_lines_are_whole_lines_to_copy_or_grep(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_done("wrote run", "electra finetune run " + "x" * 100)
    print_plan({"train.steps": 10, "a.b": None, "c": True}, "read [a] and write b")
    print_error("unknown preset 'smal'; did you mean 'small'? " + "y" * 80)
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "wrote run",
        "next: electra finetune run " + "x" * 100,
        "train.steps=10",
        "a.b=none",
        "c=true",
        "would read [a] and write b; nothing was written",
    ]
    assert output.err == "error: unknown preset 'smal'; did you mean 'small'? " + "y" * 80 + "\n"


def test_a_hostile_message_cannot_move_the_cursor(open_terminal):
    terminal = open_terminal()
    print_error("no file \x1b[2J\n")
    assert "\x1b[2J" not in terminal.getvalue()


def test_of_several_processes_one_prints_notes(monkeypatch, capsys):
    names = ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK")
    for rank in ("0", "1"):
        for name, value in zip(names, ("run", "2", "0", "1", rank), strict=True):
            monkeypatch.setenv(name, value)
        print_note(f"told by {rank}")
    assert capsys.readouterr().err == "note: told by 0\n"
