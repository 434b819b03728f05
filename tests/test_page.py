"""The page in Chromium: its numbers beside the library's, hostile text, access, a growing run."""

import json
import os
import shutil
from contextlib import contextmanager

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright
from services import load_alone, served
from tasks import ignore, small_finetune, write_files

from electra.checkpoints.checkpoint import list_checkpoints
from electra.checkpoints.finetuned import read_finetuned
from electra.finetuning.loop import finetune
from electra.inference.figure_2 import draw_picture
from electra.inference.predict import load_model
from electra.tasks.tagging import find_entities
from electra.training.machine import Machine

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="no Chromium on this machine: apt-get install chromium"
)
TEXT = "the old sailor repaired a boat yesterday"
SECONDS = 60
"""Longest time for what the page should do at once: the machine may be busy."""


@pytest.fixture(scope="module")
def address(run):
    with served(run, list_checkpoints(run)[0], "--no-open", verb="page") as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def shown(browser, address, first, **how):
    """The page with its first answer; it must ask nobody else, and no script may fail."""
    page = browser.new_page(**how)
    page.set_default_timeout(1000 * SECONDS)
    asked, failures = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("console", lambda line: failures.append(line.text) if line.type == "error" else None)
    page.on("dialog", lambda dialog: failures.append(f"dialog: {dialog.message}"))
    page.goto(address)
    page.wait_for_selector(first)
    yield page
    assert {url for url in asked if not url.startswith((f"{address}/", "data:"))} == set()
    assert failures == []
    page.close()


@pytest.fixture
def page(browser, address):
    with shown(browser, address, ".token") as page:
        yield page


@pytest.fixture(scope="module")
def networks(run):
    return load_alone(run, "tokens"), load_alone(run, "replaced")


def settle(page, text=None, place="#tokens"):
    """Wait until the page shows the answer to its newest question."""
    if text is not None:
        page.fill("#text", text)
    page.wait_for_selector(f"{place}:not([aria-busy])", state="attached")


READ_TOKENS = """each => each.map(token => ({
    was: token.querySelector('.was').textContent,
    now: token.querySelector('.now').textContent,
    isMasked: token.getAttribute('aria-pressed') === 'true',
    label: token.getAttribute('aria-label'),
    probs: [...token.querySelectorAll('.judge')].map(judge => Number(judge.dataset.prob)),
}))"""
READ_PROBS = (
    "each => each.map(guess => [...guess.querySelectorAll('li')].map(li => +li.dataset.prob))"
)


def read_tokens(page):
    return page.eval_on_selector_all(".token", READ_TOKENS)


def check(page, drawn):
    """Compare the page with the library's picture."""
    for token, expected in zip(read_tokens(page), drawn.tokens, strict=True):
        assert token["now"] == expected.token.removeprefix("##")
        assert token["was"] == (expected.original.removeprefix("##") if expected.is_masked else "")
        assert token["isMasked"] == expected.is_masked
        assert token["probs"] == pytest.approx(expected.probs_replaced, abs=1e-5)
        assert expected.original in token["label"]
    guesses = page.eval_on_selector_all(".guess", READ_PROBS)
    masked = [each for each in drawn.tokens if each.is_masked]
    for probs, expected in zip(guesses, masked, strict=True):
        best = [each.prob for each in expected.candidates]
        assert probs[: len(best)] == pytest.approx(best, abs=1e-5)


def test_it_shows_what_the_library_computes(page, networks):
    generator, discriminator = networks

    def check_drawn(**how):
        settle(page)
        drawn = draw_picture(generator, [discriminator], TEXT, **how)
        check(page, drawn)
        return {place for place, each in enumerate(drawn.tokens) if each.is_masked}

    page.fill("#text", TEXT)
    check_drawn(mask_prob=0.15, seed=0)
    page.fill("#seed", "7")
    page.locator("#rate").fill("40")
    masked = check_drawn(mask_prob=0.4, seed=7)
    assert f"{len(masked)} masked" in page.inner_text("#summary")
    for place in (0, min(masked)):  # one more is masked, and one is shown again
        page.click(f'[data-place="{place}"]')
        masked ^= {place}
        check_drawn(positions=sorted(masked), seed=7)
    page.click("#release")
    check_drawn(mask_prob=0.4, seed=7)
    page.click("#reroll")
    settle(page)
    check_drawn(mask_prob=0.4, seed=int(page.input_value("#seed")))


def test_two_checkpoints_judge_the_same_sentence(page, run, networks):
    generator, discriminator = networks
    other = load_alone(list_checkpoints(run)[0], "replaced")
    page.select_option("#other", "run@6")
    settle(page, TEXT)
    drawn = draw_picture(generator, [discriminator, other], TEXT)
    check(page, drawn)
    assert all(len(set(each.probs_replaced)) == 2 for each in drawn.tokens)
    if any(each.token != each.original for each in drawn.tokens):
        assert "run@6 found" in page.inner_text("#summary")


def test_it_works_by_keyboard(page):
    settle(page, TEXT)
    before = [token["isMasked"] for token in read_tokens(page)]
    page.focus("#release" if page.is_visible("#release") else "#reroll")
    page.keyboard.press("Tab")  # from the last control to the first token
    assert page.evaluate("document.activeElement.dataset.place") == "0"
    page.keyboard.press("Space")
    settle(page)
    after = [token["isMasked"] for token in read_tokens(page)]
    assert after == [not before[0], *before[1:]]
    assert page.evaluate("document.activeElement.dataset.place") == "0"


HOSTILE = {
    "script": "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "markup": "</textarea></script><h1>big</h1>&lt;b&gt; {{7*7}} ${7*7} javascript:alert(3)",
    "emoji": "🙂👩‍👩‍👧‍👦 the 🏳️‍🌈 boat é é",
    "right to left": "‮the queen‬ שלום عربى ‫ab‬",
    "zero width": "the\u200b queen\u200c\u200d\ufeff \u2060 boat\u00ad",
    "control": "a\x00b\x07c\x1b[31m",
    "no spaces": "x" * 3000,
    "10 KB": "the queen sold a boat " * 470,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_only_text(page, name):
    elements = "document.querySelectorAll('script, img, h1, iframe, style').length"
    before = page.evaluate(elements)
    settle(page, HOSTILE[name])
    assert page.evaluate(elements) == before
    assert page.inner_text("#error") == ""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert all(token["now"].strip() for token in read_tokens(page))
    if name == "10 KB":
        assert "what follows was left out" in page.inner_text("#note")


def check_access(page):
    """No rule of accessibility is broken, and nothing is wider than the window."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # The page's policy forbids other scripts; axe is evaluated by the browser's own tool.
    found = Axe().run(page).response
    assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
    assert len(found["passes"]) > 10


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (768, "light"), (360, "dark")]
)
def test_it_is_accessible_at_every_width(browser, address, width, scheme):
    window = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with shown(browser, address, ".token", **window) as page:
        page.wait_for_selector("figure")
        settle(page, TEXT)
        page.click('[data-place="1"]')
        settle(page)
        check_access(page)


MARKS = """each => each.map(mark => [mark.dataset.tag, mark.querySelector("bdi").textContent])"""
PROBS = "each => each.map(each => +each.dataset.prob)"


@pytest.fixture(scope="module")
def tuned(run, toy_text, toy_question, tmp_path_factory):
    """Fine-tunings by name: labels, tags and spans."""
    folder = tmp_path_factory.mktemp("tuned")
    lines = [line for line in toy_text.read_text().splitlines() if line.startswith("the queen")]
    answers = [{"text": "queen", "answer_start": 4}]
    rows, asked = [], []
    for line in lines[:24]:
        tags = ["B-PER", "I-PER", *"O" * (len(line.split()) - 2)]
        rows.append(json.dumps({"tokens": line.split(), "tags": tags}))
        question = {"id": str(len(rows)), "question": "who ?", "answers": answers}
        asked.append({"context": line, "qas": [question]})
    for split, part in (("train", slice(16)), ("dev", slice(16, 24))):
        squad = {"version": "1.1", "data": [{"title": "", "paragraphs": asked[part]}]}
        write_files(folder / "tags", {f"{split}.jsonl": "\n".join(rows[part])})
        write_files(folder / "spans", {f"{split}.json": json.dumps(squad)})
    models = {}
    for name, task, data in (
        ("label", "own", toy_question),
        ("tagged", "tagging", folder / "tags"),
        ("span", "squad-1.1", folder / "spans"),
    ):
        finetune(run, task, data, folder / name, small_finetune(), seeds=1, progress=ignore)
        models[name] = load_model(read_finetuned(folder / name), Machine())
    return models, folder


def test_fine_tuned_models_answer_texts_of_their_dev_sets(browser, tuned, toy_question):
    """Without a pre-trained model; what is shown is what the library answers."""
    models, folder = tuned
    window = {"viewport": {"width": 390, "height": 844}}
    with (
        served(*(folder / name for name in models), limits=["dev_examples=true"]) as (_, port),
        shown(browser, f"http://127.0.0.1:{port}", "#answer .best", **window) as page,
    ):

        def answer(name, **fields):
            for field, text in fields.items():
                page.fill(f"#field-{field}", text)
            settle(page, place="#answer")
            names = [each for each in models[name].network.family.fields if each != "id"]
            record = {each: page.input_value(f"#field-{each}") for each in names}
            if "tokens" in record:
                record["tokens"] = record["tokens"].split(" ")
            return models[name].answer([record]).records[0], record

        assert not page.is_visible("#picture")
        _, record = answer("label")
        dev = (toy_question / "dev.tsv").read_text()
        assert record["text"] in dev
        page.click("#example")
        assert answer("label")[1]["text"] in dev.replace(record["text"], "")
        for text in ("the queen sold a boat .", HOSTILE["script"]):
            expected, _ = answer("label", text=text)
            assert page.inner_text("#answer .best") == expected["prediction"]
            probs = page.eval_on_selector_all("#answer li", PROBS)
            shares = [prob for name, prob in expected.items() if name.startswith("prob_")]
            assert probs == pytest.approx(sorted(shares, reverse=True), abs=1e-5)
        check_access(page)
        page.select_option("#model", "tagged")
        page.wait_for_selector("#answer .words")
        expected, record = answer("tagged")
        assert expected["tokens"] == record["tokens"]
        entities = find_entities(expected["tags"])
        words = [" ".join(expected["tokens"][each.start : each.stop]) for each in entities]
        assert page.eval_on_selector_all("#answer mark", MARKS) == [["PER", each] for each in words]
        check_access(page)
        page.select_option("#model", "span")
        page.wait_for_selector("#field-question")
        context = "\U0001f600 the queen painted the castle . " * 2 + "<b>x</b>" * 3
        expected, record = answer("span", context=context)
        assert expected["span"]
        assert page.inner_text("#answer .best") == expected["answer"]
        assert page.inner_text("#answer .words").startswith("\U0001f600 the queen painted")
        assert page.locator("#answer mark").all_inner_texts() == [expected["span"]]
        marked = page.inner_text("#answer .words").partition(expected["span"])[0]
        assert len(marked) <= expected["start"]
        check_access(page)


@pytest.mark.slow
def test_it_follows_a_run_that_goes_on(browser, run, tmp_path):
    """A copy of the run that grows: curves first, then a model, then the next checkpoint."""
    growing = tmp_path / "growing"
    shutil.copytree(run, growing, ignore=shutil.ignore_patterns("checkpoints", "metrics.jsonl"))
    (growing / "checkpoints").mkdir()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    metrics = growing / "metrics.jsonl"
    metrics.write_text("".join(lines[:1]))
    with served(growing, "--no-open", verb="page") as (_, port):
        page = browser.new_page()
        page.set_default_timeout(1000 * SECONDS)
        page.goto(f"http://127.0.0.1:{port}")
        page.wait_for_selector("text=no checkpoint yet")
        page.wait_for_selector('figure[data-panel=mlm_loss] b:has-text("Generator\'s loss")')
        last = json.loads(lines[-1])["step"]
        metrics.write_text("".join(lines[:-1]))  # the last is held-out, of the step before it
        page.wait_for_selector(f"#progress:has-text('step {last} of')")
        metrics.write_text("".join(lines))
        page.wait_for_selector("figure[data-panel=mlm_loss] circle:nth-of-type(2)")
        assert page.locator("figure[data-panel=mlm_loss] circle").count() == 2
        for checkpoint in list_checkpoints(run):
            shutil.copytree(checkpoint, tmp_path / checkpoint.name)
            (tmp_path / checkpoint.name).rename(growing / "checkpoints" / checkpoint.name)
            step = int(checkpoint.name[5:])
            page.wait_for_selector(f"#state:has-text('step {step} of 12')")
            page.wait_for_selector(".token")
        page.close()
