import itertools
import json
import random
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refuse
from test_family import draw_question

from electra.model.task_heads import span_loss
from electra.tasks.family import Task
from electra.tasks.record import Asked
from electra.tasks.squad import (
    MAX_ANSWER,
    SpanExtraction,
    SpanQuestion,
    cover_span,
    cut_windows,
    find_answers,
)
from electra.tasks.squad_files import read_asked, read_questions
from electra.tokenizing.config import TokenizerConfig
from electra.tokenizing.tokenizer import Tokenizer

SQUAD_FOLDER = Path(__file__).parents[2] / "shared/data/squad"
VOCAB_FILE = Path(__file__).parents[2] / "shared/data/vocab/bert-base-uncased.txt"


@pytest.mark.parametrize(
    ("context", "answer", "words"),
    [
        ("\u200b", "\u200b", "its context has no token; it must have one"),
        ("a \u200b b", "\u200b", "its answer has no token; it must have one"),
        ("a " * 500_001, "a", "its context has 1,000,002 characters; it"),
    ],
    ids=["no context", "no answer", "a long context"],
)
def test_texts_that_make_no_rows_are_refused(toy_tokenizer, context, answer, words):
    start = context.index(answer)
    question = SpanQuestion("q", "who", context, (answer,), (start, start + 1))
    refuse(f"question 'q': {words}", SpanExtraction().encode, [question], toy_tokenizer, 32)


@pytest.mark.parametrize(("size", "stride"), [(5, 3), (8, 4), (9, 2), (1, 1), (70, 35)])
def test_windows_overlap_and_a_token_is_owned_by_the_one_that_shows_most_around_it(size, stride):
    for num_tokens in range(1, 60):
        spans = cut_windows(num_tokens, size, stride)
        windows = [window for window, _ in spans]
        assert (windows[0].start, windows[-1].stop) == (0, num_tokens)
        assert all(len(window) == size for window in windows[:-1])
        assert all(b.start - a.start == stride for a, b in pairwise(windows))
        for token in range(num_tokens):
            around = [min(token - each.start, each.stop - 1 - token) for each in windows]
            scores = [n + 0.01 * len(each) for n, each in zip(around, windows, strict=True)]
            scores = [score if score >= 0 else -1 for score in scores]
            owners = [n for n, (_, owned) in enumerate(spans) if token in owned]
            assert owners == [scores.index(max(scores))]


def test_a_long_text_takes_no_more_memory_than_its_tokens():
    tracemalloc.start()
    windows = cut_windows(50_000, 256, 128)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert windows[-1][1].stop == 50_000
    assert peak < 5e6


WORDS = (
    *("boat", "Café", "Cafe\u0301", "naïve", "e\u0301\u0323z", "x²", "Straße", "İzmir", "don't"),
    *("$12.5", "北京大学", "東京", "한국어", "שָׁלוֹם", "عَرَبِيّ", "हिन्दी", "ไทย", "👩\u200d👩\u200d👧"),
    *("❤\ufe0f", "🇩🇪", "(a-b)", "می\u200cرود", "ﬁne", "\U00020000", "\ud83d", "q\u0300\u0301"),
)


def random_context(rng: random.Random, count: int) -> tuple[str, list[tuple[int, int]]]:
    """A text of words of many languages and where each begins and ends."""
    text, places = "", []
    for _ in range(count):
        text += rng.choice((" ", "  ", "\t", "\u00a0", "\n"))
        word = rng.choice(WORDS)
        places.append((len(text), len(text) + len(word)))
        text += word
    return text, places


@pytest.fixture(scope="module")
def language_tokenizer() -> Tokenizer:
    """Of some letters in words and of others by themselves; the rest is unknown."""
    texts = [word for word in WORDS if word != "\ud83d"] * 3
    return Tokenizer.train(texts[::2] + texts, TokenizerConfig(vocab_size=90, min_frequency=2))


def random_questions(rng: random.Random, count: int) -> list[SpanQuestion]:
    """Texts of 3 to 40 words with an answer of 1 to 4 words; every fourth has none."""
    questions = []
    for number in range(count):
        context, places = random_context(rng, rng.randint(3, 40))
        places = [place for place in places if context[place[0]] != "\ud83d"]  # has no token
        first = rng.randrange(len(places))
        start, end = places[first][0], places[min(first + rng.randrange(4), len(places) - 1)][1]
        text = " ".join(rng.choices(WORDS, k=rng.randint(0, 30)))
        answer = ((context[start:end],), (start, end)) if number % 4 else ((), None)
        questions.append(SpanQuestion(f"q{number}", text, context, *answer))
    return questions


@pytest.mark.parametrize(("reference", "strips"), [(False, True), (True, True), (False, False)])
def test_rows_hold_question_and_window_and_say_where_the_answer_is(
    language_tokenizer, reference, strips
):
    """An answer of any words of any language is cut from the unchanged text."""
    tokenizer = Tokenizer(language_tokenizer.tokens_by_id, strip_accents=strips)
    split = random_questions(random.Random(1), 80)
    rows = SpanExtraction(reference=reference).encode(split, tokenizer, 48)
    num_found = dict.fromkeys(range(80), 0)
    num_cut = 0
    for number, question in enumerate(split):
        ids = tokenizer.encode(question.text)
        num_cut += len(ids) > 24
        context_ids, pairs = tokenizer.encode_with_offsets(question.context)
        assert context_ids == tokenizer.encode(question.context)
        assert rows.offsets[number].tolist() == [list(pair) for pair in pairs]
        low, high = question.span or (0, 0)
        held = [token for token, (begin, end) in enumerate(pairs) if begin < high and end > low]
        covered: list[int] = []
        for row, window in enumerate(rows.windows):
            if window.question != number:
                continue
            length, first_length = int(rows.lengths[row]), int(rows.first_lengths[row])
            ids_of_row = rows.input_ids[row].tolist()
            assert ids_of_row[length:] == [tokenizer.pad_id] * (rows.input_ids.shape[1] - length)
            head = [tokenizer.cls_id, *ids[:24], tokenizer.sep_id]
            assert ids_of_row[:first_length] == head
            assert ids_of_row[length - 1] == tokenizer.sep_id
            start = first_length - window.shift
            shown = ids_of_row[first_length : length - 1]
            assert shown == context_ids[start : start + len(shown)]
            covered += range(window.owned[0] - window.shift, window.owned[1] - window.shift)
            first, last, unanswerable = (
                int(rows.targets[name][row]) for name in ("start", "end", "unanswerable")
            )
            is_held = bool(held) and set(held) <= set(range(start, start + len(shown)))
            assert (first > 0) == is_held
            if is_held:
                begin, end = pairs[first - window.shift][0], pairs[last - window.shift][1]
                assert question.context[begin:end] == question.answers[0]
                assert unanswerable == 0
                num_found[number] += 1
            else:
                assert last == 0
                assert unanswerable == (not question.answers or not reference)
        assert covered == list(range(len(context_ids)))
    assert rows.num_cut == num_cut > 0
    assert len(rows.windows) > 150
    assert [num_found[number] for number in range(0, 80, 4)] == [0] * 20
    assert sum(count > 0 for count in num_found.values()) > 55


def every_span(split, rows, span_score):
    """The best score of each text of each question, over all spans that may be answers."""
    found = [{} for _ in split]
    for row, window in enumerate(rows.windows):
        offsets, texts = rows.offsets[window.question], found[window.question]
        for start in range(*window.owned):
            for end in range(start, min(start + MAX_ANSWER, int(rows.lengths[row]) - 1)):
                score = span_score(row, start, end)
                if score is not None:
                    begin, stop = offsets[start - window.shift][0], offsets[end - window.shift][1]
                    text = split[window.question].context[begin:stop]
                    texts[text] = max(score, texts.get(text, -np.inf))
    return found


def check_answers(answers, found):
    for n_best, answer, texts in zip(answers.n_best, answers.texts, found, strict=True):
        scores = [each.score for each in n_best]
        assert scores == pytest.approx(
            sorted(texts.values(), reverse=True)[: len(scores)], abs=1e-5
        )
        assert [texts[each.text] for each in n_best] == pytest.approx(scores, abs=1e-5)
        assert len({each.text for each in n_best}) == len(scores)
        assert texts or answer == ""


@pytest.fixture(scope="module")
def encoded(language_tokenizer):
    split = random_questions(random.Random(2), 30)
    return split, SpanExtraction().encode(split, language_tokenizer, 64)


def test_two_logits_a_position_give_the_best_of_all_spans(encoded):
    split, rows = encoded
    rng = torch.Generator().manual_seed(0)
    positions = torch.arange(rows.input_ids.shape[1])
    allowed = (positions >= rows.first_lengths[:, None]) & (positions < rows.lengths[:, None] - 1)
    allowed[:, 0] = True
    logits = torch.randn(2, *allowed.shape, generator=rng)
    start, end = logits.masked_fill(~allowed, -torch.inf)
    answers = find_answers(rows, {"start_logits": start, "end_logits": end})

    def span_score(row, first, last):
        score = float(start[row, first] + end[row, last])
        return score if np.isfinite(score) else None

    check_answers(answers, every_span(split, rows, span_score))
    null = start[:, 0] + end[:, 0]
    for number, odds in enumerate(answers.null_odds):
        of_question = [window.question == number for window in rows.windows]
        expected = float(null[of_question].min()) - answers.n_best[number][0].score
        assert odds == pytest.approx(expected, abs=1e-5)


def test_a_beam_gives_the_best_of_its_spans(encoded):
    split, rows = encoded
    rng = torch.Generator().manual_seed(0)
    count, longest = rows.input_ids.shape
    outputs = {
        "starts": torch.rand(count, longest, generator=rng).argsort(dim=1)[:, :20],
        "start_scores": torch.randn(count, 20, generator=rng),
        "ends": torch.rand(count, 20, longest, generator=rng).argsort(dim=2)[:, :, :20],
        "end_scores": torch.randn(count, 20, 20, generator=rng),
        "unanswerable": torch.randn(count, generator=rng),
    }
    outputs["ends"].clamp_(max=rows.lengths[:, None, None] - 2)  # a head gives no others
    outputs["start_scores"][:, 15:] = -torch.inf
    outputs["start_scores"][-1] = -torch.inf
    outputs["start_scores"][-2] = -torch.inf
    answers = find_answers(rows, outputs)

    def span_score(row, first, last):
        scores = [
            float(outputs["start_scores"][row, rank] + outputs["end_scores"][row, rank, place])
            for rank in (outputs["starts"][row] == first).nonzero().flatten().tolist()
            for place in (outputs["ends"][row, rank] == last).nonzero().flatten().tolist()
        ]
        return max((score for score in scores if np.isfinite(score)), default=None)

    check_answers(answers, every_span(split, rows, span_score))
    for number, odds in enumerate(answers.null_odds):
        of_question = [window.question == number for window in rows.windows]
        assert odds == pytest.approx(float(outputs["unanswerable"][of_question].min()))


def encode_split(split, tokenizer, **family):
    """The task of some questions, and their rows."""
    task = Task("squad", SpanExtraction(**family), {"dev": split})
    return task, task.encode(tokenizer, 32)["dev"]


def toy_questions(count: int, *, with_none: bool) -> list[SpanQuestion]:
    rng = random.Random(0)
    drawn = (draw_question(rng) for _ in itertools.count())
    return [*itertools.islice((each for each in drawn if with_none or each.answers), count)]


@pytest.mark.parametrize(("head", "with_none"), [("beam", True), ("plain", True), ("beam", False)])
def test_the_constant_answer_is_the_best_that_reads_no_text(toy_tokenizer, head, with_none):
    questions = toy_questions(40, with_none=with_none)
    task, rows = encode_split(questions, toy_tokenizer, head=head)
    num_none = sum(not question.answers for question in questions)
    share = num_none / len(questions)
    targets = rows.targets
    positions = torch.arange(rows.input_ids.shape[1])
    is_text = (positions >= rows.first_lengths[:, None]) & (positions < rows.lengths[:, None] - 1)

    def loss_at(share: float) -> float:
        """When [CLS] has this share and the text's tokens the rest."""
        logits = is_text / is_text.sum(dim=1, keepdim=True) * (1 - share)
        logits[:, 0] = share
        outputs = {"start_logits": logits.log(), "end_logits": logits.log()}
        if head == "beam":
            outputs["unanswerable"] = torch.full((len(rows),), share).logit(eps=1e-7)
        return span_loss(outputs, targets).item()

    constant = task.family.find_constant(rows, rows)
    assert constant.scores == {"f1": share, "exact": share}
    assert constant.loss == pytest.approx(loss_at(share), rel=1e-5)
    assert constant.loss < min(loss_at(share + 0.05), loss_at(abs(share - 0.05)))


def constant_outputs(rows, *, unanswerable: float, start: int) -> dict[str, torch.Tensor]:
    """A beam with one span: the token at `start` of each row's text."""
    count = len(rows.lengths)
    place = rows.first_lengths + start
    scores = torch.full((count, 20), -torch.inf)
    scores[:, 0] = 0.0
    return {
        "start_scores": scores,
        "starts": place[:, None].expand(-1, 20),
        "end_scores": scores[:, None].expand(-1, 20, -1),
        "ends": place[:, None, None].expand(-1, 20, 20),
        "unanswerable": torch.full((count,), unanswerable),
    }


@pytest.mark.parametrize(
    ("unanswerable", "reference", "is_told"),
    [(1.0, False, True), (-1.0, True, True), (-1.0, False, False), (-3.0, True, False)],
)
def test_a_collapse_is_told(toy_tokenizer, unanswerable, reference, is_told):
    split = toy_questions(20, with_none=True)
    task, rows = encode_split(split, toy_tokenizer, reference=reference)
    outputs = constant_outputs(rows, unanswerable=unanswerable, start=1)
    message = "no dev answer is given" if is_told else None
    assert task.family.describe_collapse(rows, outputs) == message
    scores = task.family.score(rows, outputs)
    assert scores["no_answer_f1"] == scores["no_answer_exact"] == float(is_told)


def test_columns_of_a_file_without_columns_are_refused():
    refuse("has no columns", read_asked, Path("dev.json"), Asked(named=("question", "context")))


def test_one_and_the_same_answer_is_told(toy_tokenizer):
    context = "the queen painted a boat"
    asked = [SpanQuestion(str(n), "who", context, ("the queen",), (0, 9)) for n in range(3)]
    task, rows = encode_split(asked, toy_tokenizer)
    outputs = constant_outputs(rows, unanswerable=1.0, start=0)
    assert task.family.describe_collapse(rows, outputs) == "every dev prediction is 'the'"
    assert task.family.score(rows, outputs) == {"exact": 0.0, "f1": 0.0}


@pytest.mark.parametrize("head", ["beam", "plain"])
def test_a_model_that_diverged_is_scored_and_told(toy_tokenizer, tmp_path, head):
    task, rows = encode_split(toy_questions(8, with_none=True), toy_tokenizer, head=head)
    outputs = constant_outputs(rows, unanswerable=torch.nan, start=0)
    outputs["end_scores"] = outputs["end_scores"] + torch.nan
    if head == "plain":
        nothing = torch.full(rows.input_ids.shape, torch.nan)
        outputs = {"start_logits": nothing, "end_logits": nothing}
    scores = task.family.score(rows, outputs)
    assert (scores["has_answer_f1"], scores["no_answer_f1"]) == (0, 1)
    assert task.family.describe_collapse(rows, outputs) == "no dev answer is given"
    task.family.write_predictions(tmp_path, "dev", rows, outputs)
    assert set(json.loads((tmp_path / "predictions.json").read_text()).values()) == {""}
    assert not any(json.loads((tmp_path / "nbest.json").read_text()).values())


@pytest.mark.slow
@pytest.mark.skipif(
    not (SQUAD_FOLDER.is_dir() and VOCAB_FILE.is_file()),
    reason=f"no SQuAD data at {SQUAD_FOLDER} or no vocabulary at {VOCAB_FILE}",
)
@pytest.mark.parametrize(
    ("name", "counts"),
    [("dev-v1.1.json", (10570, 10570, 10543)), ("dev-v2.0-part.json", (3522, 1781, 1780))],
)
def test_real_answers_are_recovered_from_their_tokens(name, counts):
    """The rest begins or ends inside a token: "Japan" of "Japanese", "5" of "50"."""
    found = read_questions(SQUAD_FOLDER / name, is_labelled=True).table.rows
    names = ("id", "question", "context", "answers", "span")
    questions = [SpanQuestion(*(row[each] for each in names)) for row in found]
    tokenizer = Tokenizer.load(VOCAB_FILE)
    contexts = {question.context for question in questions}
    offsets = {each: np.array(tokenizer.encode_with_offsets(each)[1]) for each in contexts}
    found = []
    for each in (question for question in questions if question.span):
        places = offsets[each.context]
        first, last = cover_span(places, *each.span)
        found.append((each.answers[0], each.context[places[first, 0] : places[last, 1]]))
    assert (len(questions), len(found), sum(one == other for one, other in found)) == counts
    assert all(answer in text for answer, text in found)
