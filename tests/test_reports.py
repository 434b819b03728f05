import dataclasses
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from refusals import refuse
from rich.text import Text

from electra.assignments import override
from electra.interop.card import describe_run
from electra.interop.export import export
from electra.interop.importing import import_model
from electra.presets import PRESETS
from electra.reports import glossary
from electra.reports.curves import draw_svg, find_panels, without_scraps
from electra.reports.page import write_page
from electra.reports.rendering import Table, to_latex, to_markdown
from electra.reports.runs import (
    PROTOCOLS,
    Finetuning,
    average_glue,
    facts_table,
    finetuning_table,
    heldout_table,
    place_on_the_papers_curve,
    pretraining_table,
    read_finetuning,
    read_folders,
    read_runs,
    read_samples,
    write_tables,
)
from electra.reports.tokens import TokenView, describe
from electra.reproduce.report import write_results
from electra.reproduce.suite import Row, Suite
from electra.settings import to_dict
from electra.terminal.live import Display
from tools.readme import BEGIN, END, update_readme
from tools.words import describe_gains, describe_mark, mark_table

HOSTILE = "</span><script>alert('x')</script>\"&"


def record(part, step, **changes):
    values = {
        **{"mlm_loss": 10 / (1 + step / 100), "mlm_accuracy": 0.25, "sampled_accuracy": 0.125},
        **{"replaced_rate": 0.13, "disc_loss": 0.3125, "constant_disc_loss": 0.3864},
        **{"disc_auc": 0.8125, "loss": 20.5},
    }
    if part == "train":
        values |= {"tokens": 7000 * step, "seconds": 0.5 * step, "tokens_per_second": 14000.0}
        values |= {"seconds_left": 60.0, "learning_rate": 1e-3, "grad_norm": 1.25}
    return {"part": part, "step": step, **values, **changes}


def write_records(folder, records):
    text = "".join(json.dumps(each) + "\n" for each in records)
    (folder / "metrics.jsonl").write_text(text)


def write_run(folder, **manifest):
    folder.mkdir(parents=True)
    records = [record("train", step) for step in range(50, 1001, 50)]
    write_records(folder, records + [record("heldout", step) for step in (500, 1000)])
    (folder / "config.json").write_text(json.dumps(to_dict(PRESETS["tiny"])))
    session = {"command": ["electra", "pretrain", "shards"], "electra": "0.1.0"}
    session |= {"commit": "0123456789abcdef+changes", "packages": {"torch": "2.13.0"}}
    session |= {"device": "Some CPU, 2 threads", "dtype": "torch.float32"}
    facts = {"format": 1, "seed": 7, "sessions": [session]}
    (folder / "manifest.json").write_text(json.dumps(facts | manifest))
    return folder


def write_finetuning(folder, task="cola", *, from_scratch, median, num_seeds=3, **changes):
    path = folder / f"finetune-{task}-{'scratch' if from_scratch else 'pretrained'}/results.json"
    path.parent.mkdir()
    values = {"start": "runs/tiny", "task": task, "metric": "mcc", "from_scratch": from_scratch}
    values |= {"median": median, "std": 0.0625 if num_seeds > 1 else None, "num_degenerate": 0}
    values["majority"] = {"mcc": 0.125, "accuracy": 0.7}
    values["seeds"] = {str(seed): {} for seed in range(num_seeds)}
    path.write_text(json.dumps(values | changes))
    return path


@pytest.fixture
def run_folder(tmp_path):
    return write_run(tmp_path / "results" / "tiny")


def test_metrics_come_back_by_step_and_a_repeated_one_counts_once(run_folder):
    records = [record("train", 100, loss=1), record("train", 50), record("train", 100, loss=2)]
    write_records(run_folder, records)
    (run,) = read_runs([run_folder])
    assert [(each["step"], each["loss"]) for each in run.train] == [(50, 20.5), (100, 1)]


@pytest.mark.parametrize(
    "line",
    [
        *("{", "", "[1]", '{"part": "test", "step": 1}'),
        *(f'{{"part": "heldout", "step": {x}}}' for x in ('"1"', "true", "-1")),
        *(
            f'{{"part": "heldout", "step": 1, "loss": {x}}}'
            for x in ('"low"', "NaN", "-Infinity", "true", "9" * 400, "[1]")
        ),
        '{"part": "train", "step": 1, "tokens": null, "seconds": 1}',
    ],
)
def test_a_garbled_record_is_left_out_and_told(run_folder, line):
    """As when the run is resumed, which must not be stricter or laxer than its report."""
    path = run_folder / "metrics.jsonl"
    path.write_text(f"{line}\n{json.dumps(record('heldout', 50))}\n" + '{"part": "train", "st')
    with pytest.warns(UserWarning, match=r"metrics\.jsonl has 1 damaged of 2 records.* line 1$"):
        (run,) = read_runs([run_folder])
    assert (len(run.heldout), len(run.train)) == (1, 0)


VIEW = {"token": "a", "original": "b", "is_replaced": True, "prob_replaced": 0.5}
RESULTS = "finetune-cola-scratch/results.json"
DAMAGE = [
    ("metrics.jsonl", "", "metrics.jsonl holds no record"),
    ("metrics.jsonl", None, "tiny is not a run folder: it has no metrics.jsonl"),
    ("manifest.json", "{}", "manifest.json has no format; this version of electra reads format 1"),
    ("manifest.json", "{\n  oops\n}", "manifest.json, line 2: not valid JSON"),
    ("config.json", "[]", "config.json: must be a JSON object, not []"),
    ("config.json", '{"train": 5}', "config.json is not the config of a run"),
    ("config.json", {"later": 5}, "run: unknown setting later; it may"),
    ("config.json", '{"model": {"hidden_size": "x"}}', "must be a whole number, not 'x'"),
    ("samples.json", "5", "samples.json: must be a JSON object, not 5"),
    (
        "samples.json",
        '{"rows": [[{"token": 1}]]}',
        "[0][0] lacks 'is_replaced', 'original', 'prob_re",
    ),
    ("samples.json", {"prob_replaced": "x"}, "[0][0].prob_replaced must be a number in [0, 1]"),
    ("samples.json", {"prob_replaced": 2}, "must be a number in [0, 1], not 2"),
    ("samples.json", {"token": None}, "[0][0].token must be text, not None"),
    ("samples.json", {"prob_replaced": float("inf")}, "Infinity"),
    (RESULTS, "{}", "it lacks 'from_scratch', 'majority'"),
    *(
        (RESULTS, {"median": x}, f"median must be a number, not {x!r}")
        for x in (None, "0.5", True, [1])
    ),
    (RESULTS, {"std": "high"}, "std must be a number or null, not 'high'"),
    (RESULTS, {"num_degenerate": "1"}, "num_degenerate must be a whole number >= 0, not '1'"),
    (RESULTS, {"num_degenerate": -1}, "num_degenerate must be a whole number >= 0, not -1"),
    (RESULTS, {"majority": {"mcc": "x"}}, "majority.mcc must be a number or null, not 'x'"),
    (RESULTS, {"majority": 5}, "majority must be a JSON object, not 5"),
    (RESULTS, {"seeds": ["0"]}, "seeds must be a JSON object, not ['0']"),
    (RESULTS, {"seeds": {"0": {"scores": {}}}}, "seeds.0.scores lacks 'mcc'"),
    (RESULTS, {"seeds": {"x": {"scores": {"mcc": 1}}}}, "seeds must be named by numbers, not 'x'"),
    (RESULTS, {"with_replacements": {"median": 1}}, "with_replacements lacks 'seeds'"),
    (RESULTS, {"with_replacements": {"median": "x", "seeds": {}}}, "median must be a number"),
    (RESULTS, {"median": 10**400}, "median must be a number, not 1"),
    (RESULTS, {"device": "\ud800"}, r"device must be whole characters, not '\ud800'"),
    (RESULTS, {"median": float("nan")}, "NaN"),
    *(
        ("manifest.json", {name: value}, said)
        for name, value, said in (
            ("packages", 5, "packages must be a JSON object, not 5"),
            ("flops", [5], "flops must be a JSON object, not [5]"),
            ("flops", {"true": 1.0}, "flops lacks 'paper'"),
            ("dtype", 1, "dtype must be text, not 1"),
            ("device", "a\ud800", r"device must be whole characters, not 'a\ud800'"),
        )
    ),
]


@pytest.mark.parametrize(("file", "content", "named"), DAMAGE)
def test_files_that_cannot_be_read_are_refused_in_one_line(run_folder, file, content, named):
    results = write_finetuning(run_folder, from_scratch=True, median=0.5)
    path = run_folder / file
    if content is None:
        path.unlink()
    elif isinstance(content, str):
        path.write_text(content)
    elif file == "samples.json":
        path.write_text(json.dumps({"rows": [[VIEW | content]]}))
    else:
        whole = json.loads(path.read_text())
        (whole["sessions"][0] if file == "manifest.json" else whole).update(content)
        path.write_text(json.dumps(whole))

    def read_all():
        facts_table(read_runs([run_folder]))
        (read_finetuning(results), read_samples(run_folder))

    refuse(named, read_all)


def test_numbers_in_tables_come_from_the_files(run_folder, tmp_path, monkeypatch):
    runs = read_runs([run_folder])
    assert ["disc_loss", "0.3125"] in heldout_table(runs).rows
    numbers = ["1,000", "7.00M", "8m20s", "0.909", "0.250", "0.3125", "0.3864", "0.812"]
    assert pretraining_table(runs).rows == [["tiny", *numbers]]
    other = write_run(tmp_path / "other" / "tiny")
    names = [str(run_folder), str(other)]
    assert [run.name for run in read_runs([run_folder, other])] == names, "told apart"
    monkeypatch.chdir(run_folder)
    assert [run.name for run in read_runs([run_folder.relative_to(run_folder)])] == ["tiny"]
    seed = {"scores": {"mcc": 0.5}, "other_scores": {"dev_mismatched": {"mcc": 0.25}}}
    paths = [
        write_finetuning(run_folder, from_scratch=False, median=0.5),
        write_finetuning(run_folder, from_scratch=True, median=0.25),
        write_finetuning(
            run_folder, "sst2", from_scratch=False, median=0.875, num_seeds=1, seeds={"0": seed}
        ),
    ]
    found = [read_finetuning(path) for path in paths]
    cola = ["tiny", "cola", "mcc", "0.500 ± 0.062", "0.250 ± 0.062", "0.125", "3"]
    sst2 = ["tiny", "sst2", "mcc", "0.875", "-", "0.125", "1"]
    assert finetuning_table(found).rows == [cola, sst2]
    assert found[2].scores == {"mcc": (0.5,), "dev_mismatched mcc": (0.25,)}
    refuse("two fine-tunings of tiny on cola", finetuning_table, [found[0], found[0]])


def test_replaced_seeds_stand_beside_those_as_drawn(run_folder):
    replaced = {"median": 0.625, "mean": 0.5, "std": 0.0, "seeds": {"0": 1000, "1": 1, "2": 2002}}
    facts = {"with_replacements": replaced, "replacements": {}}
    path = write_finetuning(run_folder, from_scratch=False, median=0.5, **facts)
    assert (
        finetuning_table([read_finetuning(path)]).rows[0][3]
        == "0.500 ± 0.062 (0.625 with 2 of 3 replaced)"
    )


GLUE_SCORES = {
    "cola": {"mcc": (0.1, 0.3, 0.2)},
    "sst-2": {"accuracy": (0.9, 0.9, 0.9)},
    "mrpc": {"accuracy": (0.6, 0.7, 0.8), "f1": (0.8, 0.9, 0.4)},
    "sts-b": {"spearman": (0.8, 0.8, 0.8), "pearson": (0.6, 0.6, 0.6)},
    "qqp": {"accuracy": (0.8, 0.8, 0.8), "f1": (0.6, 0.6, 0.6)},
    "mnli": {"accuracy": (0.7, 0.7, 0.7), "dev_mismatched accuracy": (0.8, 0.8, 0.8)},
    "qnli": {"accuracy": (0.8, 0.8, 0.8)},
    "rte": {"accuracy": (0.5, 0.6, 0.7)},
    "wnli": {"accuracy": (0.5, 0.5, 0.5)},
}


def finetuned(task, median=0.5, std=0.01, **changes):
    usual = ("tiny", task, "accuracy", False, ("0", "1"), median, std, 0.5, 0, None, 0)
    facts = Finetuning(*usual, commit=None, device=None, scores={})
    return dataclasses.replace(facts, **changes)


def glue(**changes):
    return [finetuned(task, scores=scores, **changes) for task, scores in GLUE_SCORES.items()]


def test_glues_average_is_told_with_its_protocol(run_folder, tmp_path):
    # mrpc: means of a seed's two metrics 0.7, 0.8, 0.6; sts-b 0.7; qqp 0.7; mnli 0.75
    site = [0.2, 0.9, 0.7, 0.7, 0.7, 0.75, 0.8, 0.6]
    # mrpc: accuracy 0.7; sts-b: spearman 0.8; qqp: accuracy 0.8; mnli: matched 0.7
    paper = [0.2, 0.9, 0.7, 0.8, 0.8, 0.7, 0.8, 0.6]
    expected = {
        "GLUE site's metrics, 9 tasks": (sum(site) + 0.5) / 9,
        "GLUE site's metrics, 8 tasks, no WNLI": sum(site) / 8,
        "ELECTRA paper's metrics, 8 tasks, no WNLI": sum(paper) / 8,
    }
    rows = finetuning_table(glue()).rows
    assert len(rows) == 9 + 3
    averages = [[name, f"{value:.3f}"] for name, value in expected.items()]
    assert rows[9:] == [["tiny", "GLUE average", *each, *"---"] for each in averages]
    write_page(tmp_path / "page.html", read_runs([run_folder]), finetunings=glue())
    assert "GLUE site's metrics, 9 tasks" in Tags((tmp_path / "page.html").read_text()).text


def test_glues_average_needs_every_task_it_is_of():
    rest, scratch = glue()[:-1], glue(from_scratch=True)[:-1]
    rows = finetuning_table(rest + scratch).rows[8:]
    assert [row[2] for row in rows] == list(PROTOCOLS)[1:]
    assert all(row[3] == row[4] != "-" for row in rows)
    no_rte = [each for each in rest if each.task != "rte"]
    assert len(finetuning_table(no_rte).rows) == 7
    assert [row[3] for row in finetuning_table(no_rte + scratch).rows[8:]] == ["-", "-"]
    matched = {"accuracy": GLUE_SCORES["mnli"]["accuracy"]}
    no_mismatched = [*(each for each in rest if each.task != "mnli")]
    no_mismatched.append(finetuned("mnli", scores=matched))
    assert [row[2] for row in finetuning_table(no_mismatched).rows[8:]] == list(PROTOCOLS)[2:]


def test_a_run_without_held_out_records_has_no_table_and_of_chance_no_praise(run_folder, tmp_path):
    for records, words in (
        ([record("train", 50, disc_auc=None)], "not measured"),
        ([record("heldout", 50, disc_loss=0.3864)], "it has learnt nothing yet"),
        ([record("heldout", 50, lm_accuracy=0.4)], "predicts 40% of the next tokens"),
    ):
        write_records(run_folder, records)
        runs = read_runs([run_folder])
        write_page(tmp_path / "page.html", runs)
        assert words in (tmp_path / "page.html").read_text()
        assert bool(heldout_table(runs).rows) is (words != "not measured")


def test_markdown_cells_cannot_break_the_table():
    table = to_markdown(Table(["a|b", "c"], [["x\ny", "<3"]]))
    assert table == "| a\\|b | c |\n| --- | --- |\n| x y | &lt;3 |"


def test_latex_escapes():
    text = to_latex(Table(["a_b"], [["50% & 1 ± 2"], ["-0.6"], ["1.50e+09"]]), "x")
    for each in (r"a\_b", r"50\% \& 1 $\pm$ 2", "$-$0.6", r"$1.50 \cdot 10^{9}$"):
        assert each in text


def test_counts_and_times():
    counts = [glossary.format_count(n) for n in (0, 950, 999.6, 12_345, 76.8e6, 3.4e9, 5e15)]
    assert counts == ["0", "950", "1.00k", "12.3k", "76.8M", "3.40G", "5000T"]
    about = [glossary.format_about(s) for s in (5, 130, 7100, 7300, 30_200_000, 3.1e12)]
    expected = ["1 minute", "2 minutes", "120 minutes", "2 hours", "350 days", "98,000 years"]
    assert about == [f"about {each}" for each in expected]
    seconds = [glossary.format_seconds(s) for s in (0.2, 59.7, 185, 7620, 367_200)]
    assert seconds == ["0s", "1m00s", "3m05s", "2h07m", "4d06h"]


class Tags(HTMLParser):
    """Collects tags, checks that they nest, and that no id comes twice."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.seen, self.open, self.text = [], [], ""
        self.feed(page)
        assert self.open == []
        ids = [attrs["id"] for _, attrs in self.seen if "id" in attrs]
        assert len(ids) == len(set(ids))

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        self.open += [tag] * (tag != "meta")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_one_whole_file_that_asks_nobody(run_folder, tmp_path):
    sentence = [TokenView("ate", "cooked", True, 0.91), TokenView("meal", "meal", False, 0.62)]
    write_page(
        tmp_path / "page.html",
        read_runs([run_folder]),
        finetunings=[read_finetuning(write_finetuning(tmp_path, from_scratch=False, median=0.5))],
        sentences=[sentence],
        files={"runs/tiny": "the run"},
        next_command="electra finetune runs/tiny",
    )
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r"https?:|//[a-z]|@import|<script|<link|<img|<iframe", page)
    assert set(re.findall(r"url\((.)", page)) == {"#"}
    tags = Tags(page)
    assert sum(tag == "svg" for tag, _ in tags.seen) == len(find_panels(read_runs([run_folder])))
    hints = [attrs["aria-label"] for tag, attrs in tags.seen if attrs.get("title")]
    assert "ate: replaced with probability 91%; in place of cooked, caught" in hints
    assert "meal: replaced with probability 62%; original, false alarm" in hints
    for text in ("0.3125", "19% below", "0.500 ± 0.062", "0123456789+changes", "Some CPU", "7.00M"):
        assert text in tags.text
    for word in ("mlm_loss", "constant_disc_loss", "runs/tiny", "electra finetune runs/tiny"):
        assert word in tags.text
    assert list(tmp_path.glob("*.incomplete")) == []


@pytest.mark.parametrize(
    ("steps", "drawn"),
    [
        ([50, 100, 149, 150], [50, 100, 149]),
        ([50, 100, 110, 160], [50, 100, 160]),
        *((steps, steps) for steps in ([1], [4, 5, 6], [50, 100, 1000, 2000, 2050, 2100])),
    ],
)
def test_a_window_of_few_steps_makes_no_spike(steps, drawn):
    records = [{"part": "train", "step": step, "values": {}} for step in steps]
    assert [record["step"] for record in without_scraps(records)] == drawn


def test_labels_stand_inside_however_many_digits_the_ticks_have(run_folder):
    rates = ((50, 0.14686), (490, 0.1355), (980, 0.1322))
    write_records(run_folder, [record("train", step, replaced_rate=rate) for step, rate in rates])
    runs = read_runs([run_folder])
    (panel,) = (each for each in find_panels(runs) if "replaced_rate" in each.metrics)
    (place,) = re.findall(r'rotate\(-90 ([0-9.]+) [0-9.]+\)">replaced_rate', draw_svg(panel, runs))
    assert float(place) > 9  # points, as its letters


def test_a_new_metric_is_one_record(run, run_folder, tmp_path, monkeypatch, capsys, open_terminal):
    """Display, log, report and card read the glossary."""
    new = glossary.Metric(
        "luck", "What chance gave.", "share", ".2f", ("good", "luck", 4), "generator", "Fortune",
        summary=True, sentence="the {network} was lucky {value:.0%} of the time",
    )  # fmt: skip
    monkeypatch.setitem(glossary.GLOSSARY, "luck", new)
    records = [record("train", 50, luck=0.11), record("heldout", 50, luck=0.22)]

    def show():
        with Display(steps=100) as display:
            for each in records:
                display.show(each)

    show()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[-1] for line in lines[2:]] == ["luck", "0.11", "0.22"], lines
    terminal = open_terminal()
    show()
    assert "luck 0.11 0.22" in " ".join(Text.from_ansi(terminal.getvalue()).plain.split())
    write_records(run_folder, records)
    write_page(tmp_path / "page.html", read_runs([run_folder]))
    page = Tags((tmp_path / "page.html").read_text())
    lucky = "the generator was lucky 22% of the time"
    for text in ("Fortune", "luck (share)", "0.22", "What chance gave.", lucky):
        assert text in page.text
    assert "luck" in pretraining_table(read_runs([run_folder])).headers
    assert glossary.describe_heldout(records[1])["luck"] == "0.22"
    card = tmp_path / "card"
    shutil.copytree(run, card)
    write_records(card, records)
    with pytest.warns(UserWarning, match="metrics.jsonl has lost . records"):
        assert ("held-out luck", "0.2200") in describe_run(card, 50)


def test_hostile_text_stays_text(tmp_path):
    folder = write_run(tmp_path / "a<b>&amp;'\"", device=HOSTILE, commit=HOSTILE)
    path = write_finetuning(tmp_path, from_scratch=True, median=1, task=HOSTILE[2:8])
    write_page(
        tmp_path / "page.html",
        read_runs([folder, write_run(tmp_path / "other$x_y$")]),
        finetunings=[read_finetuning(path)],
        sentences=[[TokenView(HOSTILE, HOSTILE, True, 0.5)]],
        files={HOSTILE: HOSTILE},
        next_command=HOSTILE,
    )
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    tags = Tags(page)
    assert {tag for tag, _ in tags.seen} & {"script", "b"} == set()
    assert tags.text.count(HOSTILE) >= 5


def test_curves_are_drawn_in_the_colours_of_the_page(run_folder):
    svg = draw_svg(glossary.list_panels()[1], read_runs([run_folder]))
    colours = ("var(--curve-0)", "var(--curve-1)")
    for text in (*colours, "disc_loss (nats)", "constant_disc_loss", "held-out"):
        assert text in svg


def test_runs_whose_steps_differ_in_operations_are_drawn_against_operations(run_folder):
    (run,) = read_runs([run_folder])
    first, second = ([record("train", 50, flops=flops)] for flops in (5e12, 9e12))
    panel = glossary.list_panels()[1]
    for train, unit in ((first, "optimizer steps"), (second, "true FLOPs")):
        runs = [
            dataclasses.replace(run, name=name, train=each)
            for name, each in (("a", first), ("b", train))
        ]
        assert f">{unit}</text>" in draw_svg(panel, runs)


@pytest.mark.parametrize("part", ["train", "heldout"])
def test_a_run_of_one_record_is_drawn_alike_each_time(run_folder, part):
    write_records(run_folder, [record(part, 50)])
    for panel in glossary.list_panels()[1], glossary.list_panels()[-1]:
        first, second = (draw_svg(panel, read_runs([run_folder])) for _ in range(2))
        assert first == second


@pytest.fixture
def readme(tmp_path):
    """A README and its page of results, nothing between their markers."""
    for folder in ("docs", "results"):
        (tmp_path / folder).mkdir(exist_ok=True)
    for name in ("README.md", "results/README.md"):
        (tmp_path / name).write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nThe end: ä.\n")
    return tmp_path / "README.md"


def test_readme_and_page_are_replaced_between_their_markers_only(run_folder, readme):
    origin = {"commit": "fedcba9876543", "device": "GPU"}
    write_finetuning(run_folder, from_scratch=False, median=0.5, **origin)
    write_finetuning(run_folder, from_scratch=True, median=0.25)
    write_finetuning(run_folder, "mrpc", from_scratch=True, median=0.75)
    written = update_readme(readme, run_folder.parent)
    first = [path.read_text() for path in written]
    for text in first[:2]:
        assert text.startswith(f"# Title\n\n{BEGIN}\n")
        assert text.endswith(f"\n{END}\n\nThe end: ä.\n")
        assert "old" not in text
        assert "| cola | mcc | 0.500 ± 0.062 | 0.250 ± 0.062 | - |  | 0.000 |" in text
    assert "mrpc" not in first[0]
    assert "| 0.500 ± 0.062 | 0.250 ± 0.062 | 0.125 | 3 |" in first[1]
    for text in ("mrpc", "0.3125", "seed 7", "Some CPU", "`0123456789+changes`"):
        assert text in first[1]
    assert "seeds 0, 1, 2, commit `fedcba9876`, GPU" in first[1]
    assert ">cola (mcc)<" in first[2]
    assert ">+0.250<" in first[2]
    update_readme(readme, run_folder.parent)
    assert [path.read_text() for path in written] == first


def test_an_interval_shows_whether_it_includes_zero():
    cases = {(1.24, None): "+1.2", (1.24, 0.66): "+1.2 ± 0.7", (-1.31, 1.29): "-1.31 ± 1.29"}
    assert {case: glossary.format_interval(*case, sign="+") for case in cases} == cases


def test_recipes_of_a_suite_are_columns_of_one_table(run_folder, readme):
    rows = (Row(name="BERT", paper=(80.0,)), Row(name="ours", paper=(82.8,)), Row(name="other"))
    facts = {"fraction": 1.0, "steps": 1, "tokens": 1, "flops": {"true": 1.0, "paper": 1.0}}
    facts |= {"branched_from": None, "commits": [], "devices": [], "collapsed": []}
    usual = {"title": "Toy", "paper": "Told.", "reference": "BERT", "tasks": ("own",)}
    scores = {
        "best": {"BERT": (0.5, 0.52, 0.48), "ours": (0.6, 0.62, 0.58)},
        "paper": {"BERT": (0.5, 0.6), "ours": (0.4, 0.5), "other": (0.5, 0.6)},
    }
    for recipe, of_rows in scores.items():
        suite = Suite(**usual, recipe=recipe, rows=rows)
        records = [
            {"run": f"{row}-{seed}", "row": row, "seed": seed, "scores": {"own": score}, **facts}
            for row, of_seeds in of_rows.items()
            for seed, score in enumerate(of_seeds)
        ]
        write_results(run_folder.parent / recipe, suite, records, [], 9, "electra reproduce")
    update_readme(readme, run_folder.parent)
    page = readme.with_name("results").joinpath("README.md").read_text()
    assert page.count("### Toy") == 1
    assert "| row | against | paper | recipe best | recipe paper |" in page
    best, paper = "as in the paper: +10.0 ± 0.0", "too few seeds: -10.0 ± 0.0"
    assert f"| ours | BERT | +2.8 | {best} | {paper} |" in page
    assert "| other | BERT | - | - | too few seeds: +0.00 ± 0.00 |" in page
    assert "[recipe best](best/README.md), 6 of 9 runs" in page


@pytest.mark.parametrize("name", ["README.md", "results/README.md"])
@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}\n{BEGIN}", f"{BEGIN}{END}{BEGIN}"])
def test_files_without_their_markers_are_left_alone(run_folder, readme, name, text):
    paths = {"README.md": readme, "results/README.md": readme.parent / "results" / "README.md"}
    paths[name].write_text(text)
    before = [path.read_text() for path in paths.values()]
    refuse(f"{name} must have", update_readme, readme, run_folder.parent)
    assert [path.read_text() for path in paths.values()] == before
    assert not (readme.parent / "docs" / "results.svg").exists()


def test_a_number_without_an_origin_does_not_reach_the_readme(tmp_path, readme):
    before, results = readme.read_text(), tmp_path / "results"
    refuse("holds no run", update_readme, readme, results)
    path = write_run(results / "tiny") / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sessions"][0]["commit"]
    path.write_text(json.dumps(manifest))
    refuse("manifest.json lacks 'commit'", update_readme, readme, results)
    assert readme.read_text() == before


def test_every_session_is_an_origin(run_folder):
    path = run_folder / "manifest.json"
    manifest = json.loads(path.read_text())
    (session,) = manifest["sessions"]
    other = {**session, "commit": "fedcba9876543210", "device": "Some GPU"}
    path.write_text(json.dumps({**manifest, "sessions": [session, session, other]}))
    rows = dict(facts_table(read_runs([run_folder])).rows)
    assert rows["device"] == "Some CPU, 2 threads and Some GPU"
    assert rows["commit"] == "0123456789+changes and fedcba9876"
    assert rows["packages"] == "electra 0.1.0, torch 2.13.0"


def test_settings_that_differ_are_facts(run_folder):
    [run] = read_runs([run_folder])
    other = dataclasses.replace(run, config=override(run.config, ["method.disc_weight=20"]))
    rows = {name: cells for name, *cells in facts_table([run, other]).rows}
    assert rows["method.disc_weight"] == [str(run.config.method.disc_weight), "20.0"]
    assert [name for name in rows if "." in name] == ["method.disc_weight"]


def test_verdicts_are_counted():
    views = (("b", True, 0.5), ("b", True, 0.49), ("a", False, 0.5), ("a", False, 0.1))
    sentence = [TokenView("a", *view) for view in views]
    assert describe(sentence) == "2 replaced: 1 caught, 1 missed; 1 false alarm"


SIZES = {"hidden_size": 256, "num_hidden_layers": 3}


@pytest.mark.parametrize(
    ("method", "generator", "expected"),
    [
        ({}, {"layers_fraction": 1.0}, ("rtd", "0.25 of the width, 1.0 of the layers")),
        ({"objective": "mlm"}, {}, ("mlm", "none")),
        ({}, {"kind": "unigram"}, ("rtd", "unigram")),
        ({"scheme": "adversarial"}, SIZES, ("rtd, adversarial", "width 256, 3 layers")),
    ],
)
def test_facts_tell_objective_and_generator(run_folder, method, generator, expected):
    write_records(run_folder, [record("train", 50, disc_auc=None, flops=1.5e12)])
    config = to_dict(PRESETS["small"])
    config |= {"method": method, "generator": {"hidden_fraction": 0.25} | generator}
    (run_folder / "config.json").write_text(json.dumps(config))
    facts = dict(facts_table(read_runs([run_folder])).rows)
    assert (facts["objective"], facts["generator"]) == expected
    assert facts["operations"] == "1.50e+12 FLOPs"
    assert "masked" in facts


def test_gains_are_told_if_they_exceed_the_spreads():
    scratch = {"from_scratch": True}
    found = [finetuned(*each) for each in (("a", 0.7), ("b", 0.9), *((x, 0.5) for x in "cde"))]
    found += [finetuned(*each, **scratch) for each in (("a", 0.6), ("b", 0.7), ("c", 0.515))]
    found += [finetuned("d", 0.6, std=None, **scratch)]
    assert describe_gains(found) == [
        "- Pre-training helps on b (+0.200 accuracy), a (+0.100 accuracy).",
        "- It makes no difference beyond the spread of the seeds on c (-0.015 accuracy).",
        "- It hurts on d (-0.100 accuracy, one seed).",
    ]


def test_scores_stand_beside_the_public_mark():
    """On dev by two of its scores; its scores on test are told and not compared."""
    found = [finetuned("mrpc", 0.7), finetuned("qnli", 0.9), finetuned("wnli", 0.9)]
    found += [finetuned("rte", 0.6), finetuned("mrpc", 0.6, from_scratch=True)]
    found += [finetuned("mnli", 0.5), finetuned("mnli", 0.9, after="qnli")]
    told = "Ours are above both for qnli; between for mrpc; below both for mnli."
    assert told in describe_mark(found)
    assert [[row[0], *row[3:7]] for row in mark_table(found).rows] == [
        ["mrpc", "0.600 ± 0.010", "0.699 / 0.729", "between", "0.711"],
        ["qnli", "-", "0.779 / 0.812", "above both", "0.815"],
        ["wnli", "-", "-", "", "-"],
        ["rte", "-", "-", "", "0.572"],
        ["mnli", "-", "0.654 / 0.683", "below both", "0.702"],
        ["mnli after qnli", "-", "0.654 / 0.683", "above both", "0.702"],
    ]
    assert average_glue(found, {"rte": ("accuracy",)}) is None


def test_place_on_the_papers_curve():
    assert [place_on_the_papers_curve(flops) for flops in (8.8e14, 8.9e14, 2.7e17, 1.5e18)] == [
        "8.8e+14 FLOPs by the paper's count",
        "8.9e+14 FLOPs by the paper's count: 1% of ELECTRA-Small after 6.25% of its training "
        "(GLUE 74.1)",
        "2.7e+17 FLOPs by the paper's count: past ELECTRA-Small after 12.5%, which had GLUE 76.0; "
        "75% of ELECTRA-Small after 25% (GLUE 77.7)",
        "1.5e+18 FLOPs by the paper's count: past ELECTRA-Small, which had GLUE 79.9; 2% of "
        "ELECTRA-Base (GLUE 85.1)",
    ]


def write_report(path, folders):
    found = read_folders(folders)
    write_page(path, found.runs, finetunings=found.finetunings, models=found.models)
    return Tags(path.read_text()).text, write_tables(found)


def test_finetunings_alone_have_a_page_and_tables(tmp_path):
    paths = [write_finetuning(tmp_path, from_scratch=False, median=0.5, device="Some CPU")]
    page, tables = write_report(tmp_path / "page.html", [path.parent for path in paths])
    for text in ("Fine-tuning on cola", "0.500 ± 0.062", "median ±", "Some CPU", "0, 1, 2"):
        assert text in page
    for text in ("Training curves", "Glossary", "Configuration", "Brackets"):
        assert text not in page
    assert "| tiny | cola | mcc | 0.500 ± 0.062 | - | 0.125 | 3 |" in tables
    assert "| tiny | cola | pre-trained | 0, 1, 2 | Some CPU | not recorded |" in tables


def test_runs_of_one_name_are_told_apart(tmp_path):
    starts = {"a": "a/run", "b": "b/run", "c": str(Path("a/run").absolute())}
    starts["d"] = "x/checkpoints/step-00000040"
    starts["e"] = "x/checkpoints/mine"  # no checkpoint of ours
    folders = []
    for name, start in starts.items():
        (tmp_path / name).mkdir()
        how = {"from_scratch": name == "c", "median": 0.5, "start": start}
        folders.append(write_finetuning(tmp_path / name, **how).parent)
    table = finetuning_table(read_folders(folders).finetunings)
    assert [row[0] for row in table.rows] == ["a/run", "b/run", "x@40", "x@mine"]
    assert [row[4] == "-" for row in table.rows] == [False, True, True, True]


def test_an_export_and_an_import_have_a_page_and_tables(run, tmp_path):
    for verb, source in ((export, run), (import_model, tmp_path / "export")):
        out = tmp_path / verb.__name__.removesuffix("_model")
        verb(source, out)
        page, tables = write_report(tmp_path / "page.html", [out])
        assert f"Model {out.name}" in page
        assert "Training curves" not in page
        row = f"| {out.name} | encoder | ElectraForPreTraining | 2 | 128 | 2 |"
        assert row in tables
        assert "| generator | ElectraForMaskedLM |" in tables
    (out / "config.json").write_text("{}")
    refuse("config.json is damaged", lambda: read_folders([out]))


def test_two_examples_are_shown_and_the_glossary_has_what_is_on_the_page(run_folder, tmp_path):
    page, runs = tmp_path / "page.html", read_runs([run_folder])
    view = TokenView("word", "word", False, 0.5)
    tuned = [finetuned("cola", metric="mcc", num_degenerate=1)]
    write_page(page, runs, finetunings=tuned, sentences=[[view]] * 5)
    text = page.read_text()
    shown, folded = text.split("<summary>3 more examples</summary>")
    assert (shown.count('class="sentence"'), folded.count('class="sentence"')) == (2, 3)
    glossary = text.split("<h2>Glossary</h2>")[1]
    for name in ("disc_auc", "step", "mcc", "constant answer", "collapsed"):
        assert f"<dt>{name}" in glossary
    for name in ("lm_loss", "old_disc_loss", "policy_loss", "f1", "from scratch"):
        assert f"<dt>{name}" not in glossary
    write_page(page, runs, sentences=[[view]] * 2)
    assert "more examples" not in page.read_text()
