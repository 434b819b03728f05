"""A fine-tuned model in memory, asked with records; and the files that answers are written to."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from electra.checkpoints.finetuned import Finetuned
from electra.errors import require
from electra.files import make_folder, write_text
from electra.finetuning.network import TaskNetwork, load_network, run_network
from electra.inference.network import PRECISION, require_numbers
from electra.processes import Tell, silent
from electra.tasks.record import number_records
from electra.tasks.registry import restore_family
from electra.text.characters import replace_surrogates
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine, Precision, prepare_machine

ANSWER_FORMATS = (".jsonl", ".tsv")


class Answers(NamedTuple):
    """The answers to a list of records, in order, as of `Family.describe_answers`."""

    records: list[dict[str, Any]]
    is_cut: Sequence[bool]
    """Whether each record was longer than the model's rows and was cut."""
    blank: Collection[int] = ()
    """Numbers, from 1, of the records without text, which have no answer (`describe_blank`)."""

    @property
    def num_cut(self) -> int:
        """Records that were cut."""
        return sum(self.is_cut)


@dataclass(frozen=True)
class FinetunedModel:
    """A network and what it needs to answer records, loaded once for any number of requests."""

    network: TaskNetwork
    tokenizer: Tokenizer
    sequence_length: int
    """Tokens of the longest row, as in training."""
    machine: Machine

    def answer(self, records: Sequence[Any], progress: Tell = silent) -> Answers:
        """Return the answers to records, which do not depend on the other records of the list."""
        return self.answer_examples(self.parse(records), progress)

    def parse(self, records: Sequence[Any]) -> list[Any]:
        """Return records as examples of the family.

        Records are dictionaries with the fields of `Family.fields`; others are ignored. A record of
        which a field is missing or wrong is refused by its number, from 1.
        """
        return list(map(self.network.family.parse, number_records(records)))

    def answer_examples(self, examples: Sequence[Any], progress: Tell = silent) -> Answers:
        """Return the answers to parsed records, as `answer`."""
        family = self.network.family
        asked = [each for each in examples if not family.is_blank(each)]
        numbered = enumerate(examples, 1)
        blank = {number: None for number, each in numbered if family.is_blank(each)}
        if not asked:
            return Answers(list(map(family.describe_blank, examples)), [False] * len(blank), blank)
        rows = family.encode(asked, self.tokenizer, self.sequence_length)
        outputs = run_network(self.network, rows, self.machine.device, progress)
        for values in outputs.values():
            require_numbers(values)
        found = zip(family.describe_answers(rows, outputs), rows.is_cut, strict=True)
        answered = [
            (family.describe_blank(each), False) if number in blank else next(found)
            for number, each in enumerate(examples, 1)
        ]
        return Answers([record for record, _ in answered], [cut for _, cut in answered], blank)


def load_model(
    finetuned: Finetuned, machine: Machine | None = None, *, precision: Precision = PRECISION
) -> FinetunedModel:
    """Return a fine-tuned model ready to answer; its files are not read again.

    Without a machine, device and threads are those of the fine-tuning's settings; a model that was
    trained on a CUDA device then answers on the CPU if there is none.
    """
    config = finetuned.config
    machine = machine or prepare_machine(
        "cpu" if config.device == "cpu" else "auto", precision, config.threads
    )
    network = load_network(finetuned, restore_family(finetuned.facts), machine)
    return FinetunedModel(network, finetuned.tokenizer, config.sequence_length, machine)


def keep_columns(rows: Sequence[Mapping[str, Any]], answers: Answers) -> Answers:
    """Return the answers with the columns of their inputs in front.

    A column that both have is refused, unless its values are equal, as for an id.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    records = []
    for row, answer in zip(rows, answers.records, strict=True):
        for name in (name for name in answer if name in names):
            is_one = str(row.get(name, answer[name])) == str(answer[name])
            require(is_one, f"the answers also have a column {name!r}; rename that of the input")
        records.append({**{name: row.get(name) for name in names}, **answer})
    return answers._replace(records=records)


def write_answers(path: Path, answers: Answers) -> None:
    """Write the answers, all or none: JSON lines, or a table with a header."""
    make_folder(path.parent)
    is_table = path.suffix.lower() == ".tsv"
    lines = list_rows(answers) if is_table else list_json(answers)
    write_text(path, "".join(line + "\n" for line in lines))


def list_json(answers: Answers) -> list[str]:
    """Return each answer as a line of JSON."""
    found = (json.dumps(each, ensure_ascii=False, default=str) for each in answers.records)
    return list(map(replace_surrogates, found))


def list_rows(answers: Answers) -> list[str]:
    """Return a header and the values of each answer, separated by tabs.

    Tabs and line breaks in a text become spaces. The texts of a list are separated by spaces, and
    white space inside them becomes "_". Missing fields are empty.
    """
    rows = [list(answers.records[0]), *(list(each.values()) for each in answers.records)]
    return [replace_surrogates("\t".join(map(_format_field, row))) for row in rows]


def _format_field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join("_".join(str(text).split()) or "_" for text in value)
    return "".join(" " if char in "\t\r\n" else char for char in str(value))
