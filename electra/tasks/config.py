"""Settings of `electra finetune`, and of the files of its tasks."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from electra.errors import require_choice
from electra.model.features_config import FeaturesConfig
from electra.settings import AtLeast, Needs, Settings, Within

OWN_METRICS = {
    "classification": ("accuracy", "f1", "mcc", "macro_f1"),
    "multi_label": ("micro_f1", "macro_f1"),
    "regression": ("spearman", "pearson"),
    "choice": ("accuracy",),
}
"""Metrics of each kind of the user's own task. The first is the default headline metric."""


@dataclass(frozen=True, kw_only=True)
class OwnTaskConfig(Settings):
    """Settings of the user's own task: kind, files, columns and headline metric.

    The settings are given as `--task own --set own.field=value`, or as `--task FILE.toml`, a file
    of these fields.
    """

    name: str = "own"
    """Name of the task in results and tables."""
    kind: Literal["classification", "multi_label", "regression", "choice"] = "classification"
    """classification: each text or pair of texts has one label. multi_label: any number of labels,
    or none. regression: one or more numbers. choice: one of several texts is the right one for a
    text."""
    text: str | None = None
    """Column of the text. Unset: the first column of a pair that `text_b` lists, if train has the
    pair, else the first of text, sentence, text_a and sentence1."""
    text_b: str | None = None
    """Column of the second text of a pair. Unset, with `text` also unset: text_b, sentence2 or
    text_pair, or both columns of question1 and question2, premise and hypothesis, question and
    sentence, text1 and text2, sentence_a and sentence_b, query and passage, if train has them.
    Otherwise there is no second text."""
    choices: str | None = None
    """choice: columns of the choices, separated by commas. A single column holds lists of
    choices."""
    label: str = "label"
    """Column of the label; may be missing in the test file. choice: number of the correct choice,
    from 0. regression: also several columns, separated by commas. multi_label: a column of lists,
    or several columns, separated by commas, which say 0 or 1 for the labels that they name."""
    label_separator: str = ""
    """multi_label: what separates the labels in a cell of text, such as a comma. Unset: the cells
    are lists."""
    train: str | None = None
    """Training file; a relative path is in the data folder. Unset: train.tsv, .csv, .jsonl or
    .parquet, compressed or not."""
    dev: str | None = None
    """Dev file, as `train`. Unset: the file named dev, validation, valid, val or testa."""
    test: str | None = None
    """Test file, as `train`. Unset: the file named test, if there is one."""
    separator: str = ""
    """Character between the columns of a .csv or .tsv; a tab may be written as \\t. Unset: in a
    .csv, whichever of comma, semicolon, tab and bar is most frequent in the first line; in a .tsv,
    a tab."""
    metric: (
        Literal["accuracy", "f1", "mcc", "micro_f1", "macro_f1", "spearman", "pearson"] | None
    ) = None
    """Headline metric. Unset: the first metric of the kind in OWN_METRICS. All metrics of the kind
    are reported. f1: with two labels, that of the last one (numbers by value, names by the
    alphabet); otherwise the macro average. macro_f1: always the macro average. micro_f1: over all
    labels together. With several numbers, each metric is the mean over them."""

    section = "own."
    needs = (
        Needs("kind=choice", "choices"),
        Needs("choices", "kind=choice"),
        Needs("label_separator", "kind=multi_label"),
        Needs("text_b", "kind!=choice", "the choices go with own.text alone"),
    )

    def check(self) -> None:
        """Check the rules that the table cannot express."""
        if self.metric:
            require_choice(f"own.metric of a {self.kind}", self.metric, OWN_METRICS[self.kind])
        self.must("name", self.name.isprintable() and self.name != "", "be printable, not empty")
        is_apart = self.label not in (self.text, self.text_b)
        self.must("label", is_apart, "be another column than the texts")
        is_character = len(self.between) <= 1 and self.between not in ('"', "\r", "\n")
        self.must("separator", is_character, "be one character, not a quotation mark")

    @property
    def between(self) -> str:
        """`separator` itself; a tab may be written as two characters."""
        return self.separator.replace("\\t", "\t")


@dataclass(frozen=True, kw_only=True)
class SquadConfig(Settings):
    """Files and head of `electra finetune --task squad-1.1` and `--task squad-2.0`."""

    train: str = ""
    """Training files in the data folder, separated by commas: .json, .jsonl or .parquet of SQuAD,
    of MRQA, or flat as of `datasets`. Unset: the file whose name begins with train."""
    dev: str = ""
    """Dev files, as `train`. Unset: the file whose name begins with dev or valid, or is val."""
    test: str = ""
    """Test files, as `train`; optional. Unset: the file whose name begins with test."""
    head: Literal["beam", "plain"] = "beam"
    """beam: as in the paper; predicts the end given the start, and "no answer" by a classifier.
    plain: start and end logits at each position, as in BERT and in transformers'
    ElectraForQuestionAnswering."""


@dataclass(frozen=True, kw_only=True)
class TaggingConfig(Settings):
    """Columns of the files of `electra finetune --task tagging`."""

    word_column: Annotated[int, AtLeast(1)] = 1
    """Number of the word's column, from 1."""
    tag_column: Annotated[int, AtLeast(0)] = 0
    """Number of the tag's column, from 1; 0: the last column."""

    section = "tagging."


@dataclass(frozen=True, kw_only=True)
class RetrievalConfig(Settings):
    """Files and loss of `electra finetune --task retrieval`."""

    query: str = "query"
    """Column of the queries."""
    positive: str = "positive"
    """Column of the passage that answers the query; with a corpus, of its id. Columns named
    negative, or negative_1, negative_2 and so on, hold passages that do not, or lists of them."""
    corpus: str = ""
    """Table of passages with the columns id and text; a relative path is in the data folder. The
    dev queries are then searched in all passages of the corpus. Unset: in the passages of the dev
    rows."""
    temperature: Annotated[float, Within("(0, inf)")] = 0.05
    """Divisor of the cosines in the loss."""
    both_directions: bool = True
    """Whether the loss also asks for the query of each passage, among those of the batch."""
    cached_rows: Annotated[int, AtLeast(0)] = 0
    """Texts whose activations are in memory at a time, for large batches: each text is computed
    twice, and the gradient is the same. 0: all texts of a batch, computed once. Source: Gao et al.
    2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"."""

    section = "retrieval."


@dataclass(frozen=True, kw_only=True)
class TeacherConfig(Settings):
    """Fine-tuned models that `electra finetune` learns from."""

    folders: str = ""
    """Fine-tunings of the same task, separated by commas; the model learns the mean answer of all
    their seeds. Unset: the model learns the labels."""
    text: str = ""
    """A file of texts without labels, as for `electra predict`; the model also learns the teacher's
    answers to these texts."""
    weight: Annotated[float, Within("(0, 1]")] = 1.0
    """Share of the teacher's answers in the loss; the rest is that of the labels."""

    section = "teacher."
    needs = (
        Needs("text", "folders"),
        Needs("weight!=1", "folders"),
        Needs("text", "weight=1", "a text without labels has no other loss"),
    )

    @property
    def names(self) -> list[str]:
        """The folders."""
        return [name for name in self.folders.split(",") if name]


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Settings):
    """All settings of `electra finetune`. Source: Table 7; FINETUNE_PRESETS has the presets."""

    learning_rate: Annotated[float, Within("(0, inf)")] = 3e-4
    """Peak learning rate of the head; lower layers have lower rates."""
    layer_lr_decay: Annotated[float, Within("(0, 1]")] = 0.8
    """Learning rate of a layer divided by the learning rate of the layer above."""
    warmup_fraction: Annotated[float, Within("[0, 1)")] = 0.1
    """Share of the steps with linear warm-up from 0. Linear decay to 0 follows."""
    weight_decay: Annotated[float, Within("[0, inf)")] = 0.0
    """Decoupled weight decay, multiplied by the learning rate. Source: Table 7 has 0, the released
    code 0.01."""
    max_grad_norm: Annotated[float, Within("(0, inf]")] = 1.0
    """Maximum global norm of the gradient; inf: no clipping."""
    mode: Literal["paper", "reference"] = "paper"
    """reference: as in the released code, the loss is the sum over the batch instead of the mean,
    Adam has no bias correction, decay runs during warm-up, and each layer's learning rate is scaled
    once more (the top layer's by layer_lr_decay squared). The released code's weight_decay is 0.01.
    """
    batch_size: Annotated[int, AtLeast(1)] = 32
    """Examples per optimizer step."""
    train_examples: Annotated[int, AtLeast(0)] = 0
    """Number of training examples to use, drawn at random, the same for every seed; 0: all."""
    dev_fraction: Annotated[float, Within("[0, 1)")] = 0.0
    """Share of train that becomes the dev set if there is no dev file, such as 0.1. It follows a
    hash of the texts, so identical texts (for pairs, the first; for questions, the context) land in
    the same split."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: each label counts in the loss as much as any other, however rare it is; of several
    labels a text, the texts with a label count as much as those without. Source: King and Zeng
    2001, "Logistic Regression in Rare Events Data", as scikit-learn has it."""
    epochs: Annotated[int, AtLeast(0)] = 0
    """Passes over train. 0: the task's default, which is 10 for GLUE's RTE and STS-B, 2 for SQuAD,
    and 3 for all other tasks."""
    sequence_length: Annotated[int, AtLeast(0)] = 0
    """Longest row, tokens, including special tokens. Longer texts are truncated, but see
    max_windows; in SQuAD and tagging they are split into several rows. 0: 512 for SQuAD, 256 for
    tagging, 128 for all other tasks, and at most the row length of the pre-training."""
    max_windows: Annotated[int, AtLeast(1)] = 1
    """Maximum number of rows for a long single text with labels or numbers: windows that overlap by
    a quarter. Longer texts are truncated. The loss is that of the mean of the windows' logits; the
    answer is their mean, their maximum or the first window's, whichever is best on dev. Time and
    memory grow with the number of windows."""
    dropout_prob: Annotated[float, Within("[0, 1)")] = 0.1
    """Dropout probability in the encoder and before the classifier. Replaces the pre-training's."""
    pooling: Literal["cls", "mean", "segments"] = "cls"
    """Hidden states that the classifier reads. cls: that of [CLS], as in the paper. mean: the mean
    over the row's tokens. segments: for a pair of texts, the mean over each text, and the absolute
    difference and the product of the two means, for hidden states and embeddings; for a single
    text, and in multiple choice, the same as mean. A causal encoder cannot use cls without a
    BiLSTM. Use segments for a small or briefly trained encoder: no pre-training loss trains the
    hidden state of [CLS] directly, and few examples do not teach attention to compare two texts."""
    bilstm: bool = False
    """Whether a BiLSTM with new weights is between encoder and head; its two directions are
    together as wide as the hidden states. Source: BERT's ablation "LTR & No NSP + BiLSTM" (Devlin
    et al. 2019, table 5)."""
    reseeds: Annotated[int, AtLeast(0)] = 2
    """Maximum number of replacements of a seed whose run collapses, each with another seed. The
    results are those of the original seeds. The median with replacements is reported separately.
    The default in a grid is 0."""
    reset_layers: Annotated[int, AtLeast(0)] = 0
    """Top layers that begin with new weights instead of the pre-trained ones. The last layer of a
    small discriminator mostly encodes whether a token was replaced. Source: Zhang et al. 2021,
    "Revisiting Few-sample BERT Fine-tuning" (section 5)."""
    swap_pairs: bool = True
    """Train on every pair of MRPC and STS-B in both orders, as the released code does."""
    keep_epoch: Literal["last", "best"] = "last"
    """Epoch whose weights and scores are kept. best: the epoch with the best headline metric on
    dev. The dev score is then no longer a score on unseen examples. The results say whether last or
    best was used."""
    score_epochs: Literal["all", "last"] = "all"
    """Epochs after which dev is scored. last: the last one only, which saves time if dev is large
    beside train."""
    own: OwnTaskConfig = field(default_factory=OwnTaskConfig)
    squad: SquadConfig = field(default_factory=SquadConfig)
    tagging: TaggingConfig = field(default_factory=TaggingConfig)
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """As in pre-training."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """As in pre-training."""
    threads: Annotated[int, AtLeast(0)] = 0
    """CPU threads; 0: one for each core this process may use."""
    layers: Literal["auto", "plain", "fused"] = "auto"
    """As in pre-training."""

    needs = (
        Needs("keep_epoch=best", "score_epochs=all"),
        Needs("bilstm", "features.layers=0", "they have BiLSTMs"),
    )

    def check(self) -> None:
        """Check the rules that the table cannot express."""
        is_unread = self.teacher.folders and self.teacher.weight == 1
        self.must(
            "class_weights",
            self.class_weights == "none" or not is_unread,
            "be none with a teacher, unless teacher.weight is below 1: the labels are not learnt",
        )
        self.must("sequence_length", not 0 < self.sequence_length < 8, "be 0 or >= 8")
