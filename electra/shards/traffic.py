"""The cost of reading shards from a store: bytes and requests, by the choices of the cache."""

from typing import NamedTuple

from electra.files import format_size
from electra.shards.cache import make_keeper, require_room, size_files
from electra.shards.config import ExamplesConfig
from electra.shards.examples import Examples
from electra.shards.store import Shards


class Traffic(NamedTuple):
    """The traffic of one machine; with `examples.groups` each machine has one group."""

    machines: int
    corpus: int
    """Bytes of all shards for training."""
    before: int
    """Bytes that the first step waits for."""
    copied: int
    """Bytes of the whole run."""
    requests: int
    """Files of the whole run; each is one request, or a few of a large file."""
    hits: float
    """Share of the files' uses for which the file was there."""
    steps: int

    def price(self, per_gb: float, per_thousand: float) -> float:
        """Return what all machines pay for bytes, by the GB, and requests, by the thousand."""
        return self.machines * (self.copied / 1e9 * per_gb + self.requests / 1e3 * per_thousand)


def estimate_traffic(
    shards: Shards,
    config: ExamplesConfig,
    cache: int | None,
    seed: int,
    steps: int,
    batch_size: int,
) -> Traffic:
    """Return what the steps of a run copy, as if each file came before the next one is asked for.

    Shards on this machine count as those of a store. Without a cache all files are copied before
    the first step.
    """
    files = size_files(shards.train, everywhere=True)
    sizes = {name: size for each in files for name, size in each.items()}
    corpus = sum(sizes.values())
    if config.order == "global":
        require_room(corpus, cache)
    if cache is None or config.order == "global":
        return Traffic(1, corpus, corpus, corpus, len(sizes), 0.0, steps)
    examples = Examples(shards.train, shards.tokenizer, config, seed, shards.mixture)
    keeper = make_keeper(examples, files, cache, steps, batch_size, [0])
    before = copied = requests = uses = 0
    for use in keeper.uses(0):
        if use.first >= steps:
            break
        current = [each for each in keeper.coming if each.first <= use.first <= each.last]
        keeper.move(use.first, list({n for each in (*current, use) for n in each.shards}))
        uses += sum(len(files[number]) for number in use.shards)
        while choice := keeper.choose():
            keeper.loading.discard(choice[0])
            copied, requests = copied + sizes[choice[0]], requests + 1
            before += sizes[choice[0]] if use.first == 0 and choice[0] in keeper.needed else 0
    return Traffic(
        config.groups, corpus, before, copied, requests, 1 - requests / max(uses, 1), steps
    )


def describe_traffic(
    found: Traffic, seconds: float, bandwidth: float, price: tuple[float, float] | None
) -> list[tuple[str, str]]:
    """Return the rows of a table: of a run of so many seconds, at a bandwidth in bytes a second."""
    each = " by each machine" if found.machines > 1 else ""
    rows = [
        ("shards", format_size(found.corpus)),
        (f"copied{each}", f"{format_size(found.copied)} in {found.requests:,} requests"),
        ("copied a step", format_size(found.copied / found.steps)),
        ("bandwidth for this speed", f"{format_size(found.copied / seconds)}/s"),
        ("found in the cache", f"{found.hits:.1%} of the reads"),
        (
            "before the first step",
            f"{format_size(found.before)}, {found.before / bandwidth:,.0f} s at "
            f"{format_size(bandwidth)}/s",
        ),
    ]
    if price:
        rows.append((f"price{' of all machines' if each else ''}", f"{found.price(*price):,.2f}"))
    return rows
