"""Settings of BiLSTMs on an encoder's hidden states."""

from dataclasses import dataclass
from typing import Annotated, Literal

from electra.settings import AtLeast, Needs, Settings


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig(Settings):
    """Feature-based training: BiLSTMs are trained on the hidden states of a frozen encoder.

    Source: BERT's feature-based approach (Devlin et al. 2019, section 5.3), which works best with
    `layers` 4.
    """

    layers: Annotated[int, AtLeast(0)] = 0
    """Number of top layers whose hidden states are features; 0: the encoder is fine-tuned."""
    combine: Literal["concat", "sum"] = "concat"
    """concat: the layers' hidden states are concatenated. sum: learnt weighted sum of the layers'
    hidden states, as in ELMo."""
    lstm_size: Annotated[int, AtLeast(0)] = 0
    """Units of a BiLSTM per direction; 0: the encoder's hidden size, as in BERT (768)."""
    lstm_layers: Annotated[int, AtLeast(1)] = 2
    """Number of stacked BiLSTMs."""

    section = "features."
    needs = (
        Needs("combine!=concat", "layers", "4, as BERT has it"),
        Needs("lstm_size", "layers", "4, as BERT has it"),
        Needs("lstm_layers!=2", "layers", "4, as BERT has it"),
    )
