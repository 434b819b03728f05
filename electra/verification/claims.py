"""Claims and how they fared; the records of hashes in a folder of any kind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from electra.checkpoints.checkpoint import list_checkpoints, verify_checkpoint
from electra.errors import UserError, count_of, require
from electra.files import HASHES, check_hashes, read_object, sha256_file
from electra.pretraining.replay import Absent
from electra.shards.layout import read_moves
from electra.shards.merging import list_hashes, moved


class Claim(NamedTuple):
    """Something that a folder says, and whether it holds."""

    status: Literal["ok", "FAILED", "not checked"]
    claim: str
    told: str = ""
    """The finding, or why the claim was not checked."""


class Claims:
    """Collects the claims of a folder, and of the folders in it, in the order of their proof.

    `show` is called with each claim when it is proved.
    """

    def __init__(self, show: Callable[[Claim], None], place: str = "") -> None:
        self.show, self.place = show, place
        self.found: list[Claim] = []

    def inside(self, place: str) -> "Claims":
        """Return a collector for a folder inside, whose name precedes each of its claims."""
        inner = Claims(self.show, f"{self.place}{place}/")
        inner.found = self.found
        return inner

    @contextmanager
    def prove(self, claim: str) -> Iterator[Callable[[str], None]]:
        """Add a claim, which fails by an error inside; what is yielded describes what was found."""
        told: list[str] = []
        try:
            yield told.append
        except Absent as reason:
            proved = Claim("not checked", self.place + claim, str(reason))
        except (UserError, OSError) as error:  # any other is a fault of this program
            proved = Claim("FAILED", self.place + claim, str(error))
        else:
            proved = Claim("ok", self.place + claim, "; ".join(told))
        self.found.append(proved)
        self.show(proved)

    def compare_hashes(self, folder: Path) -> None:
        """Compare every file with each record of hashes in a folder, whatever wrote the record."""
        records = [path for path in sorted(folder.rglob(HASHES)) if path.parent.is_dir()]
        checkpoints, shards = list_checkpoints(folder), folder / "manifest.json"
        for path in records:
            with self.prove(f"{path.relative_to(folder)}: each file matches its sha256") as tell:
                check_hashes(path.parent)
                tell(count_of(len(read_object(path)["sha256"]), "file"))
        for checkpoint in checkpoints:
            place = checkpoint.relative_to(folder)
            with self.prove(f"{place}/state.json: each file matches its sha256") as tell:
                try:
                    verify_checkpoint(checkpoint)
                except ValueError as error:
                    raise UserError(f"{checkpoint} is damaged: {error}") from None
        if any(folder.glob("*.tokens")):
            with self.prove("manifest.json: each shard matches its sha256") as tell:
                hashes, moves = list_hashes(folder), read_moves(folder)
                for name, sha256 in hashes.items():
                    path = folder / moved(name, moves)
                    require(path.is_file(), f"{path} is missing, but {shards} names it")
                    right = sha256_file(path) == sha256
                    require(right, f"{path} is damaged: it does not match its sha256 in {shards}")
                tell(count_of(len(hashes), "file"))
        elif not records and not checkpoints:
            with self.prove("each file matches its sha256"):
                raise Absent(f"{folder} holds no record of hashes")
        with self.prove("each JSON file is as it was written") as tell:
            files = [path for path in folder.rglob("*.json") if path.is_file()]
            for path in files:
                read_object(path)  # which compares the hash that an object of ours has in itself
            tell(count_of(len(files), "file"))
