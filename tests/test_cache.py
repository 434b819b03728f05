"""Shards in a cache that is smaller than the corpus: the bits of local ones, or one line."""

import http.server
import shutil
import threading
from collections import OrderedDict
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuse
from runs import assert_same_end, ignore
from stores import BUCKET
from test_order import SIZES, WINDOW, make_order

from electra.assignments import override
from electra.cli import main
from electra.files import LOCK, format_size, hold, parse_size
from electra.objects import place_of, send
from electra.pretraining.loop import pretrain
from electra.processes import Place
from electra.shards.cache import Keeper, cached, find_need, size_files
from electra.shards.examples import Examples
from electra.shards.order import groups_of
from electra.shards.store import open_shards
from electra.shards.traffic import estimate_traffic

IN_WINDOWS = ["examples.order=window", "examples.window=4"]


def count_least_recently_used(reads, sizes, limit):
    """Copies of a cache that does not know what comes."""
    kept, copies = OrderedDict(), 0
    for name in reads:
        copies += name not in kept
        kept[name] = sizes[name]
        kept.move_to_end(name)
        while sum(kept.values()) > limit:
            kept.popitem(last=False)
    return copies


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, share=st.integers(1, 20), room=st.integers(0, 60), data=st.data(), **WINDOW)
def test_what_is_read_is_there_and_the_farthest_goes(sizes, window, groups, share, room, data):
    order = make_order(sizes, window, groups)
    files = [{f"{n}.tokens": 2 * size, f"{n}.lines": size} for n, size in enumerate(sizes)]
    chosen = range(groups)[: data.draw(st.integers(1, groups))]
    need, number = find_need(order, files, share, chosen)
    assert number <= len(sizes)
    steps, begin = 60, data.draw(st.integers(0, 50))
    keeper = Keeper(
        files, need + room, lambda step: order.uses(step, share * groups, chosen), 100, steps
    )
    copies, reads = 0, []
    for step in range(begin, steps):
        uses = islice(order.uses(step, share * groups, chosen), 50)
        shards = sorted({n for use in uses if use.first <= step <= use.last for n in use.shards})
        keeper.move(step, shards)
        reads += keeper.needed
        while choice := keeper.choose():
            name, gone = choice
            copies += 1
            assert not keeper.needed.keys() & set(gone)
            assert name in keeper.needed or name in keeper.next_use
            assert sum(keeper.kept.values()) <= need + room
            keeper.loading.discard(name)
        assert keeper.needed.keys() <= keeper.kept.keys()
    sizes_of = {name: size for each in files for name, size in each.items()}
    if chosen == range(groups):
        assert copies <= max(len(sizes_of), count_least_recently_used(reads, sizes_of, need + room))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/electra/window"


@pytest.fixture
def site(many_shards):
    """A web server of the shards: its URL, and the names that were asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path.rpartition("/")[2])
            super().do_GET()

        def log_message(self, *arguments):
            pass

    handler = partial(Handler, directory=many_shards)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def measure(folder):
    """Bytes of the files with the name of a sha256, which may go at any time."""
    found = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            found += path.stat().st_size if len(path.name) == 64 else 0
    return found


def make_examples(url, config, part=(0, 1)):
    shards = open_shards(url)
    given = shards.train, shards.tokenizer, config.examples, config.train.seed
    return Examples(*given, shards.mixture, part)


def test_batches_are_those_of_local_shards(many_shards, site, toy_config, folder):
    """Over two epochs; the cache never has more than its size, and nothing of others is removed."""
    config = override(toy_config, IN_WINDOWS)
    local = make_examples(many_shards, config)
    total = sum(sum(each.values()) for each in size_files(make_examples(site[0], config).shards))
    need, _ = find_need(local.forecast(), size_files(make_examples(site[0], config).shards), 8, [0])
    size = (need + total) // 2
    assert size < total
    folder.mkdir(parents=True)
    (folder / "of somebody else").write_text("")
    # Begun, and twice continued: with a smaller cache, which the folder has at once.
    for start in (0, 30, 31):
        examples = make_examples(site[0], config)
        limit = size if start else total
        with cached(examples, limit, 130, 8, Place()):
            expected, found = (each.batches(start, 8) for each in (local, examples))
            for _ in range(start, 130 if start else 40):
                assert next(found).input_ids_BL.equal(next(expected).input_ids_BL)
                assert measure(folder) <= limit
    files = [name for name in site[1] if name.startswith("train-")]
    assert len(files) > len({*files})  # some were removed, and copied again
    assert len(files) < 3 * len({*files})
    assert {each.name for each in folder.iterdir() if len(each.name) < 64} == {"of somebody else"}


SESSION = st.tuples(
    st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)]), st.integers(0, 40), st.integers(1, 9)
)
"""Machines and processes on each, the first step, and steps until a kill."""


@settings(max_examples=10, deadline=None)
@given(room=st.floats(0, 2), sessions=st.lists(SESSION, min_size=1, max_size=3), **WINDOW)
def test_machines_that_come_and_go_read_the_rows_of_one(
    many_shards, toy_config, tmp_path_factory, window, groups, room, sessions
):
    """With a cache each, which a killed session has left as it was; any step comes next."""
    words = ["order=window", f"window={window}", f"groups={groups}"]
    config = override(toy_config, [f"examples.{word}" for word in words])
    whole, homes = make_examples(many_shards, config), tmp_path_factory.mktemp("homes")
    for (machines, local), step, steps in sessions:
        num_ranks, parts = machines * local, []
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for rank in range(num_ranks):
                place = Place(rank, num_ranks, rank % local, local)
                home = homes / str(rank // local)
                patch.setenv("XDG_CACHE_HOME", str(home))
                if (home / "electra/window").exists():
                    (home / "electra/window" / f"{0:064}.incomplete").write_text("cut off")
                part = make_examples(f"file://{many_shards}", config, (rank, num_ranks))
                first = rank - rank % local
                chosen = groups_of(groups, first, first + local, num_ranks)
                need, _ = find_need(whole.forecast(), size_files(part.shards), 8 // groups, chosen)
                stack.enter_context(cached(part, round((1 + room) * need), 60, 8, place))
                parts.append(part.batches(step, 8))
            for at in range(step, step + steps):
                expected = whole.batch(at, 8).input_ids_BL
                for rank, each in enumerate(parts):
                    own = slice(rank * 8 // num_ranks, (rank + 1) * 8 // num_ranks)
                    assert next(each).input_ids_BL.equal(expected[own])


def test_a_run_with_a_cache_is_the_run_without(many_shards, site, toy_config, tmp_path):
    config = override(toy_config, IN_WINDOWS)
    pretrain(many_shards, tmp_path / "here", config, ignore)
    pretrain(site[0], tmp_path / "there", config, ignore, cache=200_000)
    assert_same_end(tmp_path / "here", tmp_path / "there")


def test_one_process_copies_for_all_of_a_machine(many_shards, site, toy_config):
    """Each has a group of its own, and waits for files that the other has asked for."""
    config = override(toy_config, [*IN_WINDOWS, "examples.groups=2"])
    whole = make_examples(many_shards, config).batches(0, 8)
    places = [Place(rank, 2, rank, 2) for rank in range(2)]
    parts = [make_examples(site[0], config, (rank, 2)) for rank in range(2)]
    with cached(parts[0], 40_000, 60, 8, places[0]), cached(parts[1], 40_000, 60, 8, places[1]):
        batches = [part.batches(0, 8) for part in parts]
        for _ in range(60):
            expected = next(whole).input_ids_BL
            for rank, each in enumerate(batches):
                own = slice(4 * rank, 4 * rank + 4)
                assert next(each).input_ids_BL.equal(expected[own])


def test_faults_of_a_store_change_no_batch(many_shards, proxy, toy_config, folder):
    """Through a proxy before a real server; what lasts is one line."""
    config = override(toy_config, IN_WINDOWS)
    url = f"s3://{BUCKET}/cached"
    for path in many_shards.rglob("*"):
        if path.is_file() and path.stem != "verified":
            send(path, place_of(url) / path.relative_to(many_shards).as_posix())

    def read():
        examples = make_examples(url, config)
        with cached(examples, 20_000, 12, 8, Place()):
            return [next(batches).input_ids_BL for batches in [examples.batches(0, 8)] * 12]

    local = make_examples(many_shards, config).batches(0, 8)
    expected = [next(local).input_ids_BL for _ in range(12)]
    for kind in ("slow down", "too many", "reset", "cut", "stall", "flip"):
        proxy.add(kind, "GET", "/train-", times=2)
        assert all(map(torch.equal, read(), expected)), kind
        shutil.rmtree(folder)
    for kind, line in (("flip", "is damaged: its sha256"), ("expired", "token has expired")):
        proxy.add(kind, "GET", "/train-", times=10_000)
        refuse(f"/train- ... {line}", read)
        proxy.planned.clear()
    assert all(map(torch.equal, read(), expected))


def test_what_cannot_be_cached_is_one_line(many_shards, site, toy_config, folder, tmp_path):
    def read(words, size):
        config = override(toy_config, words)
        with cached(examples := make_examples(site[0], config), size, 12, 8, Place()):
            examples.batch(0, 8)

    needed = refuse(
        "shards that examples.window=4 may read at once: give --cache", read, IN_WINDOWS, 9
    )
    assert "--cache 0.009 KB is less than the" in needed
    refuse("set examples.order=window", read, [], 9)
    for damage in (b"", None):
        path = many_shards / "train-00000.tokens"
        before = path.read_bytes()
        try:
            path.write_bytes(damage) if damage is not None else path.unlink()
            words = ["examples.order=window", "examples.window=80"]
            refuse("train-00000.tokens", read, words, 10**9)
        finally:
            path.write_bytes(before)
    with hold(folder / LOCK):
        refuse("is in use by process", read, IN_WINDOWS, 10**9)


def test_a_cache_of_shards_on_this_machine_is_told(many_shards, toy_config):
    examples = make_examples(many_shards, toy_config)
    with (
        pytest.warns(UserWarning, match="--cache has no effect"),
        cached(examples, 1, 1, 8, Place()),
    ):
        pass


def test_sizes_are_words():
    assert [parse_size(word) for word in ("200GB", "1.5 tb", "12M", "7")] == [
        200 * 10**9, 15 * 10**11, 12 * 10**6, 7,
    ]  # fmt: skip
    assert format_size(1_250_000_000) == "1.25 GB"
    for word in ("", "GB", "-1GB", "0", "1 PB", "nan"):
        refuse("is not a size", parse_size, word)


def test_a_plan_tells_what_is_copied(many_shards, site, toy_config, capsys):
    shards, config = open_shards(site[0]), override(toy_config, IN_WINDOWS).examples
    corpus = sum(sum(each.values()) for each in size_files(shards.train))
    whole = estimate_traffic(shards, config, 10**9, 0, 300, 8)
    assert (whole.copied, whole.corpus, whole.machines) == (corpus, corpus, 1)
    assert 0.7 < whole.hits < 0.95  # of five or six epochs
    assert 0 < whole.before < corpus / 5
    less = estimate_traffic(shards, config, corpus // 2, 0, 300, 8)
    assert 1.5 * corpus < less.copied < 4 * corpus
    assert whole._replace(machines=2).price(3, 7) == 2 * (
        corpus / 1e9 * 3 + whole.requests / 1e3 * 7
    )
    # The same as a cache copies.
    examples = make_examples(site[0], override(toy_config, IN_WINDOWS))
    site[1].clear()
    with cached(examples, corpus // 2, 120, 8, Place()):
        for _, _ in zip(range(120), examples.batches(0, 8), strict=False):
            pass
    expected = estimate_traffic(shards, config, corpus // 2, 0, 120, 8).requests
    assert len(site[1]) == pytest.approx(expected, rel=0.1)
    words = "--preset tiny --steps 50 --probe-seconds 0.1 --cache 1GB --price 0.09 0.0004 --set"
    main(["plan", str(site[0]), *words.split(), *IN_WINDOWS, "train.device=cpu"])
    told = " ".join(capsys.readouterr().out.split())
    names = "found in the cache", "before the first step", "price", f"electra pretrain {site[0]} "
    for name in names:
        assert name in told
