"""Which steps are skipped: those without a finite loss and gradient, and spikes of the gradient.

Everything stays on the device, so that a step can be captured and never waits. A skipped step
changes no weights, moments or counters; of two updates apart, a first one that was accepted stays.
Its rows are a function of (seed, step), so they can be written aside later.

Source: the skipped steps of OLMo-core's SkipStepOptimizer. There a NaN enters the window of norms,
and every step after it is skipped until it has left the window; here it never enters. There a
spike enters unchanged, and the window is blind until it has left; here it enters as the limit that
it exceeded. So one spike hardly moves the limit, and a lasting change of level is accepted after a
few skipped steps. And there the norms themselves are compared. Their distribution has a long tail,
so that 6 deviations are exceeded every hundred steps of a small healthy run; the logarithms of the
norms are nearly normal, and are compared here.
"""

import torch
from torch import Tensor

WINDOW = 128
"""Gradient norms that are remembered, by which a spike is recognised. The deviation of fewer is
too uncertain: of 64 norms, a healthy run of 200 steps had a spike."""
SMALLEST_NORM = 1e-30
"""Smaller norms count as this one, whose logarithm is finite."""
MAX_IN_A_ROW = 10
"""Steps in a row without a finite loss and gradient that stop a run."""
ACCEPTED, NOT_FINITE, SPIKE = 0, 1, 2
"""Verdicts on a step."""
REASONS = {NOT_FINITE: "loss or gradient not finite", SPIKE: "spike of the gradient norm"}


class Guard:
    """Judges each step by its loss and its gradient norm, on the device of the step."""

    def __init__(self, device: torch.device):
        self.log_norms = torch.zeros(WINDOW, device=device)
        self.num_norms = torch.zeros((), dtype=torch.int64, device=device)
        self.sigmas = torch.full((), torch.inf, device=device)
        self.places = torch.arange(WINDOW, device=device)

    @property
    def state(self) -> dict[str, Tensor]:
        """The state in a checkpoint, so that a resumed run skips the same steps."""
        return {"log_norms": self.log_norms, "num_norms": self.num_norms}

    def begin(self, sigmas: float) -> None:
        """Set the limit of the next step: its distance from the mean, in standard deviations."""
        self.sigmas.fill_(sigmas)

    def clear(self) -> None:
        """Forget all norms, because another loss is minimised from now on."""
        for tensor in self.state.values():
            tensor.zero_()

    @torch.no_grad()
    def judge(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Return the verdict on a step of this loss and norm, on the device, and keep the norm."""
        is_finite = torch.isfinite(loss) & torch.isfinite(grad_norm)
        log_norm = grad_norm.clamp(min=SMALLEST_NORM).log()
        number = self.num_norms.clamp(1, WINDOW)
        mean = self.log_norms.sum() / number
        deviations = (self.log_norms - mean) * (self.places < self.num_norms)
        limit = mean + self.sigmas * (deviations.square().sum() / number).sqrt()
        is_spike = is_finite & (self.num_norms >= WINDOW) & (log_norm > limit)
        place = (self.num_norms % WINDOW).view(1)
        remembered = torch.where(is_spike, limit, log_norm)
        remembered = torch.where(is_finite, remembered, self.log_norms[place])
        self.log_norms.scatter_(0, place, remembered.view(1))
        self.num_norms += is_finite
        return torch.where(is_finite, is_spike * SPIKE, NOT_FINITE)
