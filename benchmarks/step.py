"""One pre-training step, ours beside steps with transformers' modules.

    python -m benchmarks.step --out results/step.json

(a) loop        a plain loop with transformers: ElectraForMaskedLM(labels=) and
                ElectraForPreTraining, samples from the full logits, float32, torch's AdamW
(b) best        the fastest loop with the same modules: LM head at the masked positions only, one
                uniform number per sample, fused AdamW, bfloat16 autocast
(b') eager      (b) with transformers' eager attention, in place of torch's kernel (presets modern-)
(c) compiled    (b) with torch.compile (--compiled; needs a compiler)
ours            electra/pretraining/step.py as in pre-training
ours, plain     ours, neither compiled nor captured (on a GPU)
ours, wide      ours with a generator of the discriminator's width and a quarter of its layers
                (--wide): a different computation, whose time only is compared

For the architectures modernbert and deberta-v2, the modules are ...ForMaskedLM, and their
...Model under transformers' head for ELECTRA's discriminator. transformers has neither DeBERTaV3's
heads nor its sharing: the presets deberta-v3-... are timed with ELECTRA's.

All variants have the same sizes, batch, dropout, vocabulary and tied embeddings. Before the timing,
all variants except "ours, wide" must compute the same two losses from the same weights, masks and
samples, without dropout. Batches come from the host. Repeats alternate between the variants; a
repeat is one step on a CPU and 20 steps on a GPU. Peak memory is measured in a separate process per
variant.
"""

import argparse
import dataclasses
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.assignments import override
from electra.checkpoints.manifest import find_commit
from electra.checkpoints.names import ARCHITECTURES, ELECTRA
from electra.files import write_json, write_text
from electra.method.flops import count_true
from electra.method.masking import Draw
from electra.method.replaced_token_detection import ReplacedTokenDetection
from electra.model.batch import Batch
from electra.model.masked_lm import MaskedLM
from electra.presets import PRESETS
from electra.pretraining.acceleration import WARM_UP_STEPS
from electra.pretraining.memory import make_rows
from electra.pretraining.networks import sketch_objective
from electra.pretraining.start import build_model, prepare_step
from electra.reports.rendering import Table, to_markdown
from electra.tokenizing.tokenizer import Tokenizer, make_tokenizer
from electra.training.config import PretrainConfig
from electra.training.machine import Machine, prepare_machine

TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest relative difference between losses of the same computation, by dtype."""

AS_ELECTRA = ("model.published_heads=false", "method.sharing=embeddings", "train.updates=joint")
"""What is different in DeBERTaV3 for which transformers has no modules."""


class Ours:
    """The step of pre-training."""

    name = "ours"
    settings: Sequence[str] = ()

    def __init__(self, config: PretrainConfig, tokenizer: Tokenizer, machine: Machine):
        self.config, self.machine = override(config, self.settings), machine
        self.device, self.dtype = machine.device, machine.dtype
        self.model = build_model(self.config, tokenizer, machine).train()
        self.do_step = prepare_step(self.model, self.config, machine)
        self.num_done = 0

    def step(self, batch: Batch) -> Tensor:
        """Do one optimizer step, and return its loss, on the device."""
        outcome = self.do_step(self.num_done, batch, 1e-4)
        self.num_done += 1
        return torch.stack([output.loss for output in outcome.outputs]).sum()

    @torch.no_grad()
    def losses(self, batch: Batch, draw: Draw, sampled_BS: Tensor) -> tuple[float, float]:
        """Return the generator's and discriminator's losses in nats, without dropout."""
        self.model.eval()
        output = self.model(batch, draw, self.model.masking.count(batch, draw))
        self.model.train()
        mlm_sum, num_chosen = output.means["mlm_loss"]
        disc_sum, num_real = output.means["disc_loss"]
        return (mlm_sum / num_chosen).item(), (disc_sum / num_real).item()

    @torch.no_grad()
    def draws(self, batch: Batch, draw: Draw) -> Tensor:
        """Return the sampled tokens (B, S) at the chosen positions, without dropout."""
        self.model.eval()
        output = self.model(batch, draw, self.model.masking.count(batch, draw))
        self.model.train()
        assert output.judgement is not None
        return output.judgement.corrupt_ids_BL.gather(1, draw.index_BS)


class Discriminator(nn.Module):
    """transformers' encoder of another body under its head of ElectraForPreTraining."""

    def __init__(self, config: Any):
        super().__init__()
        from transformers import AutoModel, ElectraConfig, ElectraForPreTraining

        self.base_model = AutoModel.from_config(config)
        sizes = ElectraConfig(hidden_size=config.hidden_size, num_hidden_layers=0, vocab_size=1)
        self.discriminator_predictions = ElectraForPreTraining(sizes).discriminator_predictions

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        """Return an object with the loss, as ElectraForPreTraining does."""
        logits_BL = self.discriminator_predictions(self.base_model(input_ids).last_hidden_state)
        loss = F.binary_cross_entropy_with_logits(logits_BL, labels.float())
        return SimpleNamespace(loss=loss)


class Loop:
    """The plain loop with transformers' modules."""

    name = "loop"
    attention = "sdpa"

    def __init__(self, ours: Ours):
        self.config, self.device = ours.config, ours.device
        model = ours.model
        assert isinstance(model, ReplacedTokenDetection)
        assert isinstance(model.generator, MaskedLM)
        self.masking = model.masking
        self.rng = torch.Generator(self.device)
        sizes = self.config.model
        small = self.config.generator.encoder(sizes)

        self.architecture = sizes.architecture
        encoders = model.discriminator.state_dict(), model.generator.encoder.state_dict()
        heads = model.discriminator_head.state_dict(), model.generator.head.state_dict()
        names, tokenizer = ARCHITECTURES[sizes.architecture], make_tokenizer(sizes.vocab_size)
        name = names.class_name("MaskedLM")
        self.generator = self._build(
            name,
            names.write_config(small, name, tokenizer),
            names.to_theirs(encoders[1], heads[1], "MaskedLM"),
        )
        name = names.class_name("PreTraining")
        values = names.write_config(sizes, name, tokenizer)
        judge = ELECTRA.to_theirs({}, heads[0], "PreTraining")
        if self.architecture == "electra":
            tensors = names.to_theirs(encoders[0]) | judge
            self.discriminator = self._build(name, values, tensors)
            self.features = self.generator.generator_predictions
            self.softmax = self.generator.generator_lm_head
        else:
            tensors = names.to_theirs(encoders[0])
            tensors = {f"base_model.{name}": each for name, each in tensors.items()} | judge
            self.discriminator = self._build(Discriminator, values, tensors)
            if self.architecture == "modernbert":
                self.features, self.softmax = self.generator.head, self.generator.decoder
            else:
                head = self.generator.cls.predictions
                self.features, self.softmax = head.transform, head.decoder
        self.generator.base_model.embeddings = self.discriminator.base_model.embeddings
        self.softmax.weight = self.discriminator.base_model.get_input_embeddings().weight
        self.parameters = list(
            dict.fromkeys([*self.discriminator.parameters(), *self.generator.parameters()])
        )
        self.optimizer = self.build_optimizer()

    def _build(
        self,
        architecture: str | type[nn.Module],
        values: dict[str, Any],
        tensors: dict[str, Tensor],
    ) -> Any:
        """Return a network of transformers, on the device and in training."""
        import transformers

        name = f"{ARCHITECTURES[self.architecture].classes}Config"
        # transformers has only eager DeBERTa attention.
        attention = "eager" if self.architecture == "deberta-v2" else self.attention
        config = getattr(transformers, name)(**values, attn_implementation=attention)
        is_name = isinstance(architecture, str)
        make: Any = getattr(transformers, str(architecture)) if is_name else architecture
        network = make(config)
        network.load_state_dict({k: v.cpu() for k, v in tensors.items()}, strict=False)
        return network.to(self.device).train()

    def inputs(self, input_ids_BL: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return what the networks read: token ids and, unless they have none, segments."""
        if self.architecture == "electra":
            return {"input_ids": input_ids_BL, "token_type_ids": batch.token_type_ids_BL}
        return {"input_ids": input_ids_BL}

    def build_optimizer(self) -> torch.optim.Optimizer:
        """Return torch's AdamW with its default implementation."""
        return torch.optim.AdamW(self.parameters, lr=1e-4, weight_decay=0.01)

    def forward(self, batch: Batch, draw: Draw, sampled_BS: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return both losses. If `sampled_BS` is given, it replaces the generator's samples."""
        masked_BL = self.masking.mask(batch.input_ids_BL, draw)
        is_chosen_BL = torch.zeros_like(masked_BL, dtype=torch.bool)
        is_chosen_BL.scatter_(1, draw.index_BS, draw.chosen_BS)
        labels_BL = batch.input_ids_BL.masked_fill(~is_chosen_BL, -100)
        output = self.generator(**self.inputs(masked_BL, batch), labels=labels_BL)
        corrupt_BL = masked_BL.clone()
        if sampled_BS is None:
            probs_MV = output.logits.detach()[is_chosen_BL].softmax(dim=-1)
            corrupt_BL[is_chosen_BL] = torch.multinomial(probs_MV, 1).squeeze(1)
        else:
            corrupt_BL = batch.input_ids_BL.scatter(1, draw.index_BS, sampled_BS)
        is_replaced_BL = (corrupt_BL != batch.input_ids_BL).long()
        judged = self.discriminator(**self.inputs(corrupt_BL, batch), labels=is_replaced_BL)
        return output.loss, judged.loss

    def step(self, batch: Batch) -> None:
        """Do one optimizer step."""
        batch = batch.to(self.device)
        draw, _ = self.masking.draw(batch, self.rng)
        mlm_loss, disc_loss = self.forward(batch, draw, None)
        (mlm_loss + self.config.method.disc_weight * disc_loss).backward()
        nn.utils.clip_grad_norm_(self.parameters, self.config.optimizer.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def losses(self, batch: Batch, draw: Draw, sampled_BS: Tensor) -> tuple[float, float]:
        """Return the generator's and discriminator's losses in nats, without dropout."""
        networks = self.generator.eval(), self.discriminator.eval()
        mlm_loss, disc_loss = self.forward(batch, draw, sampled_BS)
        for network in networks:
            network.train()
        return mlm_loss.item(), disc_loss.item()


class Best(Loop):
    """The fastest loop with transformers' modules."""

    name = "best"

    def __init__(self, ours: Ours):
        super().__init__(ours)
        self.dtype = ours.dtype
        self.encode_generator: Callable[..., Any] = self.generator.base_model
        self.encode_discriminator: Callable[..., Any] = self.discriminator.base_model

    def build_optimizer(self) -> torch.optim.Optimizer:
        """Return the fused AdamW."""
        return torch.optim.AdamW(self.parameters, lr=1e-4, weight_decay=0.01, fused=True)

    def forward(self, batch: Batch, draw: Draw, sampled_BS: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return both losses. If `sampled_BS` is given, it replaces the generator's samples."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            masked_BL = self.masking.mask(batch.input_ids_BL, draw)
            original_M = batch.input_ids_BL.gather(1, draw.index_BS).flatten()
            hidden_BLH = self.encode_generator(**self.inputs(masked_BL, batch)).last_hidden_state
            index_BSH = draw.index_BS[:, :, None].expand(-1, -1, hidden_BLH.shape[-1])
            features_ME = self.features(hidden_BLH.gather(1, index_BSH).flatten(0, 1))
            logits_MV = self.softmax(features_ME).float()
            mlm_loss = F.cross_entropy(logits_MV, original_M)
            if sampled_BS is None:
                with torch.no_grad():
                    cumulative_MV = logits_MV.softmax(dim=-1).cumsum(dim=-1)
                    threshold_M1 = draw.sample_BS.flatten()[:, None] * cumulative_MV[:, -1:]
                    sampled_BS = torch.searchsorted(cumulative_MV, threshold_M1).view_as(
                        draw.index_BS
                    )
                    sampled_BS = sampled_BS.clamp_(max=logits_MV.shape[1] - 1)
            corrupt_BL = batch.input_ids_BL.scatter(1, draw.index_BS, sampled_BS)
            is_replaced_BL = corrupt_BL != batch.input_ids_BL
            states_BLH = self.encode_discriminator(
                **self.inputs(corrupt_BL, batch)
            ).last_hidden_state
            logits_BL = self.discriminator.discriminator_predictions(states_BLH)
            disc_loss = F.binary_cross_entropy_with_logits(
                logits_BL.float(), is_replaced_BL.float()
            )
        return mlm_loss, disc_loss


class Eager(Best):
    """The fastest loop with eager attention."""

    name = "eager"
    attention = "eager"


class Compiled(Best):
    """The fastest loop with torch.compile."""

    name = "compiled"

    def __init__(self, ours: Ours):
        super().__init__(ours)
        self.encode_generator = torch.compile(self.generator.base_model)
        self.encode_discriminator = torch.compile(self.discriminator.base_model)


class Plain(Ours):
    """Ours without compiler and CUDA graph."""

    name = "ours, plain"
    settings = ("train.compile=no", "train.cuda_graph=false")


class Wide(Ours):
    """Ours with a wide and shallow generator: a few large matrix products, not many small ones."""

    name = "ours, wide"
    settings = ("generator.hidden_fraction=1", "generator.layers_fraction=0.25")


THEIRS = {variant.name: variant for variant in (Loop, Best, Eager, Compiled)}
OURS = {variant.name: variant for variant in (Ours, Plain, Wide)}


def build(name: str, config: PretrainConfig, machine: Machine) -> Any:
    """Return a variant. All variants have the same initial weights."""
    tokenizer = make_tokenizer(config.model.vocab_size)
    if name in OURS:
        return OURS[name](config, tokenizer, machine)
    return THEIRS[name](Ours(config, tokenizer, machine))


def check_losses(
    variants: Sequence[Any], config: PretrainConfig, machine: Machine
) -> dict[str, Any]:
    """Return each variant's losses on one batch.

    Raises:
        SystemExit: A loss differs from ours by more than TOLERANCE.
    """
    ours = next(variant for variant in variants if variant.name == "ours")
    batch = make_rows(config, config.train.batch_size, 0).to(machine.device)
    draw, _ = ours.model.masking.draw(batch, torch.Generator(machine.device).manual_seed(0))
    sampled_BS = ours.draws(batch, draw)
    losses = {variant.name: variant.losses(batch, draw, sampled_BS) for variant in variants}
    tolerance = TOLERANCE[str(ours.dtype).removeprefix("torch.")]
    for name, pair in losses.items():
        for value, expected in zip(pair, losses["ours"], strict=True):
            if not abs(value - expected) <= tolerance * expected:  # also if it is NaN
                raise SystemExit(f"error: {name} computes {pair}, ours {losses['ours']}")
    return losses


def time_steps(variant: Any, batches: Sequence[Batch], machine: Machine) -> float:
    """Return the mean seconds per step."""
    machine.wait()
    began = time.perf_counter()
    for batch in batches:
        variant.step(batch)
    machine.wait()
    return (time.perf_counter() - began) / len(batches)


def measure_memory(name: str, arguments: Sequence[str], machine: Machine) -> float:
    """Return the peak memory, in bytes, of a new process that runs a few steps of a variant."""
    command = [sys.executable, "-m", "benchmarks.step", *arguments, "--memory-of", name]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(answer.split()[-1])


def report_memory(name: str, config: PretrainConfig, machine: Machine) -> None:
    """Print the peak memory of this process, in bytes, after a few steps of a variant."""
    variant = build(name, config, machine)
    for seed in range(WARM_UP_STEPS + 2):
        variant.step(make_rows(config, config.train.batch_size, seed))
    print(machine.peak_memory)


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed arguments: of `words`, or of the command line for None."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--preset", default="small", choices=list(PRESETS))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> None:
    """Check the losses, measure, print a table, and write the results."""
    arguments = read_arguments()
    settings = [f"train.batch_size={arguments.batch_size}", *arguments.set]
    if PRESETS[arguments.preset].model.architecture == "deberta-v2":
        settings = [*AS_ELECTRA, *settings]
    config = override(PRESETS[arguments.preset], settings)
    machine = prepare_machine("auto", config.train.precision, arguments.threads)
    if arguments.memory_of:
        return report_memory(arguments.memory_of, config, machine)
    asked = {
        "eager": config.model.architecture == "modernbert",
        "compiled": arguments.compiled,
        "ours, plain": machine.device.type == "cuda",
        "ours, wide": arguments.wide,
    }
    names = [name for name in (*THEIRS, *OURS) if asked.get(name, True)]
    variants = [build(name, config, machine) for name in names]
    comparable = [variant for variant in variants if variant.name != "ours, wide"]
    losses = check_losses(comparable, config, machine)
    print(f"losses agree: {losses}", flush=True)

    seconds: dict[str, list[float]] = {name: [] for name in names}
    peaks = {torch.float32: 0.0, machine.dtype: 0.0}
    for repeat in range(arguments.repeats + 1):
        num_steps = 20 if machine.device.type == "cuda" else 1
        batches = [
            make_rows(config, config.train.batch_size, num_steps * repeat + number)
            for number in range(num_steps)
        ]
        for variant in variants:
            taken = time_steps(variant, batches, machine)
            if repeat:  # the first repeat is a warm-up
                seconds[variant.name].append(taken)
        for dtype in peaks:  # at several times, since another program may take cores at one
            peak = dataclasses.replace(machine, dtype=dtype).measure_peak()
            peaks[dtype] = max(peak, peaks[dtype])
        print(f"repeat {repeat} of {arguments.repeats}", file=sys.stderr, flush=True)
    length = config.examples.sequence_length
    tokens = config.train.batch_size * length
    words = [word for word in sys.argv[1:] if word not in ("--compiled", "--wide")]
    results: dict[str, Any] = {}
    for name in names:
        median = statistics.median(seconds[name])
        dtype = torch.float32 if name == "loop" else machine.dtype
        variant = next(variant for variant in variants if variant.name == name)
        flops = count_true(sketch_objective(variant.config), length) * tokens
        results[name] = {
            "flops": flops,
            "seconds": seconds[name],
            "median": median,
            "tokens_per_second": tokens / median,
            "times_loop": statistics.median(seconds["loop"]) / median,
            "times_best": statistics.median(seconds["best"]) / median,
            "share_of_peak": flops / median / peaks[dtype],
            "dtype": str(dtype).removeprefix("torch."),
        }
    record = {
        "device": machine.name,
        "commit": find_commit(),
        "torch": torch.__version__,
        "preset": arguments.preset,
        "settings": settings,
        "tokens_per_step": tokens,
        "peak_flops": {str(dtype).removeprefix("torch."): peak for dtype, peak in peaks.items()},
        "losses": losses,
        "variants": results,
    }
    title = (
        f"{record['device']}, torch {torch.__version__}, preset {arguments.preset}, batch "
        f"{config.train.batch_size} x {config.examples.sequence_length}, medians of "
        f"{arguments.repeats} interleaved steps, commit {record['commit']}"
    )
    report(title, record, arguments.out)  # written now, in case the memory runs are interrupted
    for name in names:
        results[name]["peak_memory"] = measure_memory(name, words, machine)
    report(title, record, arguments.out)


def report(title: str, record: dict[str, Any], out: Path | None) -> None:
    """Print the table of results, and write the table and the record."""
    table = f"{title}\n\n{to_markdown(tabulate(record['variants']))}"
    if out:
        write_json(out, record)
        write_text(out.with_suffix(".md"), table + "\n")
    print(table, flush=True)


def tabulate(results: dict[str, Any]) -> Table:
    """Return the table of results, one row per variant."""
    rows = []
    for name, result in results.items():
        low, high = min(result["seconds"]), max(result["seconds"])
        rows.append(
            [
                name,
                result["dtype"],
                f"{1000 * result['median']:.4g} ({1000 * low:.4g} to {1000 * high:.4g})",
                f"{result['tokens_per_second']:,.0f}",
                f"{result['times_loop']:.2f}",
                f"{result['times_best']:.2f}",
                f"{result['share_of_peak']:.0%}",
                f"{result['peak_memory'] / 2**30:.2f}" if "peak_memory" in result else "",
            ]
        )
    headers = [
        "step",
        "dtype",
        "ms, median (range)",
        "tokens/s",
        "x loop",
        "x best",
        "of peak",
        "GiB",
    ]
    return Table(headers, rows)


if __name__ == "__main__":
    main()
