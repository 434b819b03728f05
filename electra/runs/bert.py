"""Exports as BERT's classes in transformers, for programs that know BERT and not ELECTRA.

The encoder is the same graph where embeddings are as wide as hidden states, as in Base and Large;
the parameters differ in their names only. BERT has no class with a discriminator's head, which is
written beside the encoder, and its classifiers read a pooler with tanh, which ELECTRA has not.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from electra.config import require

DISCRIMINATOR_FILE = "discriminator_head.safetensors"
"""The discriminator's head, under the names in `DiscriminatorHead`."""
_CLASSES = {
    "ElectraModel": "BertModel",
    "ElectraForPreTraining": "BertModel",
    "ElectraForMaskedLM": "BertForMaskedLM",
    "ElectraForTokenClassification": "BertForTokenClassification",
    "ElectraForQuestionAnswering": "BertForQuestionAnswering",
}
_NAMES = {
    "electra.": "bert.",
    "generator_predictions.": "cls.predictions.transform.",
    "generator_lm_head.bias": "cls.predictions.bias",
}
"""Beginnings of ELECTRA's names, and what BERT has in their place."""
_DISCRIMINATOR = "discriminator_predictions."


def to_bert(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Return config.json and parameters of BERT's class, and the discriminator's head, if any.

    Args:
        config: config.json of ELECTRA's class.
        tensors: Parameters of ELECTRA's class, under the names in transformers.

    Raises:
        UserError: The network is a ModernBERT, the embeddings have another width than the hidden
            states, or BERT has no class with such a head.
    """
    require(
        config["model_type"] == "electra",
        "BERT has learned positions and norms after its layers' parts, modernbert rotary positions "
        "and norms before them: export without --as bert, for all that have ModernBERT",
    )
    embedding_size, hidden_size = config["embedding_size"], config["hidden_size"]
    require(
        embedding_size == hidden_size,
        f"BERT has no projection of embeddings: embedding_size {embedding_size} must be "
        f"hidden_size {hidden_size}, as in base and large; export without --as bert, or with "
        "--onnx",
    )
    (architecture,) = config["architectures"]
    require(
        architecture in _CLASSES,
        f"BERT has no class with the head of {architecture}: its own reads a pooler with tanh; "
        "export without --as bert, or with --onnx",
    )
    theirs: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for ours, their in _NAMES.items():
            if name.startswith(ours):
                name = their + name.removeprefix(ours)
        theirs[name] = tensor
    head = {
        name.removeprefix(_DISCRIMINATOR): theirs.pop(name)
        for name in list(theirs)
        if name.startswith(_DISCRIMINATOR)
    }
    if _CLASSES[architecture] == "BertModel":
        theirs = {name.removeprefix("bert."): tensor for name, tensor in theirs.items()}
    kept = {name: value for name, value in config.items() if name != "embedding_size"}
    classes = [_CLASSES[architecture]]
    return kept | {"model_type": "bert", "architectures": classes}, theirs, head
