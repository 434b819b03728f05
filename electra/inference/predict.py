"""A fine-tuned model in memory, asked with records; and the files that answers are written to."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from electra.checkpoints.folder import Finetuned
from electra.files import make_folder, write_text
from electra.finetuning.network import TaskNetwork, load_network, run_network
from electra.inference.network import require_numbers
from electra.processes import Tell, silent
from electra.tasks.family import number_records
from electra.tasks.registry import restore_family
from electra.text.streams import replace_surrogates
from electra.tokenizing.tokenizer import Tokenizer
from electra.training.machine import Machine, prepare_machine

ANSWER_FORMATS = (".jsonl", ".tsv")


class Answers(NamedTuple):
    """The answers to a list of records, in order, as of `Family.describe_answers`."""

    records: list[dict[str, Any]]
    num_cut: int
    """Records that were longer than the model's rows and were cut."""


@dataclass(frozen=True)
class FinetunedModel:
    """A network and what it needs to answer records, loaded once for any number of requests."""

    network: TaskNetwork
    tokenizer: Tokenizer
    sequence_length: int
    """Tokens of the longest row, as in training."""
    machine: Machine

    def answer(self, records: Sequence[Any], progress: Tell = silent) -> Answers:
        """Return the answers to records, which do not depend on the other records of the list.

        On the machine of the fine-tuning, the answers to dev are bit for bit those of training.
        """
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
        if not examples:
            return Answers([], 0)
        rows = family.encode(examples, self.tokenizer, self.sequence_length)
        outputs = run_network(self.network, rows, self.machine.device, progress)
        for values in outputs.values():
            require_numbers(values)
        return Answers(family.describe_answers(rows, outputs), rows.num_cut)


def load_model(finetuned: Finetuned, machine: Machine | None = None) -> FinetunedModel:
    """Return a fine-tuned model ready to answer; its files are not read again.

    Without a machine, device, precision and threads are those of the fine-tuning's settings; a
    model that was trained on a CUDA device then answers on the CPU if there is none.
    """
    config = finetuned.config
    machine = machine or prepare_machine(
        "cpu" if config.device == "cpu" else "auto", config.precision, config.threads
    )
    network = load_network(finetuned, restore_family(finetuned.facts), machine)
    return FinetunedModel(network, finetuned.tokenizer, config.sequence_length, machine)


def write_answers(path: Path, answers: Answers) -> None:
    """Write the answers, all or none: JSON lines, or a table with a header."""
    make_folder(path.parent)
    is_table = path.suffix.lower() == ".tsv"
    lines = list_rows(answers) if is_table else list_json(answers)
    write_text(path, "".join(line + "\n" for line in lines))


def list_json(answers: Answers) -> list[str]:
    """Return each answer as a line of JSON."""
    return [replace_surrogates(json.dumps(each, ensure_ascii=False)) for each in answers.records]


def list_rows(answers: Answers) -> list[str]:
    """Return a header and the values of each answer, separated by tabs.

    Tabs and line breaks in a text become spaces. The texts of a list are separated by spaces, and
    white space inside them becomes "_".
    """
    rows = [list(answers.records[0]), *(list(each.values()) for each in answers.records)]
    return [replace_surrogates("\t".join(map(_format_field, row))) for row in rows]


def _format_field(value: Any) -> str:
    if isinstance(value, list):
        return " ".join("_".join(text.split()) or "_" for text in value)
    return "".join(" " if char in "\t\r\n" else char for char in str(value))
