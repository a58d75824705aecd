"""KSL as a loss of TorchRL (extra `torchrl`): sequences as a TensorDict in, `loss_ksl` out.

    ksl = KSLLoss(encoder, latent_dim=50, n_actions=4, k=3)
    optimizer = torch.optim.Adam(ksl.parameters())
    buffer = ReplayBuffer(storage=..., sampler=SliceSampler(slice_len=3), batch_size=96)
    loss = ksl(buffer.sample().reshape(-1, 3))["loss_ksl"]
    ...
    ksl.update_slow()

As in TorchRL's other losses, `parameters()` are everything that the loss trains, the encoder too.
Where the encoder is part of another loss as well, an optimizer must get its parameters once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.objectives.common import AUTO_LOSS_MASK_KEYS, LossModule

from kstep.errors import KstepError
from kstep.interop.ksl import KSL


class KSLLoss(LossModule):  # type: ignore[misc]
    """`kstep.KSL` on trajectories (B, k): each observation, the action and what came next.

    What follows an episode's end, `("next", "done")`, does not count, and neither does what
    `loss_mask_key` marks as padding.
    """

    @dataclass
    class _AcceptedKeys:
        """Names that `set_keys` can change."""

        observation: NestedKey = "observation"
        action: NestedKey = "action"
        done: NestedKey = "done"

    tensor_keys: _AcceptedKeys
    out_keys = ["loss_ksl"]  # noqa: RUF012  (TorchRL reads it from the class)

    def __init__(self, encoder: nn.Module, **options: Any) -> None:
        """`encoder`: from observations (B, ...) to latents; `options`: those of `kstep.KSL`."""
        super().__init__()
        self.encoder = encoder
        self.ksl = KSL(encoder, **options)

    @property
    def functional(self) -> bool:
        return False

    @property
    def in_keys(self) -> list[NestedKey]:
        """What the loss reads."""
        keys = self.tensor_keys
        return [keys.observation, keys.action, ("next", keys.observation), ("next", keys.done)]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return `loss_ksl` for k consecutive transitions each, (B, k)."""
        k = self.ksl.k
        if tensordict.ndim != 2 or tensordict.shape[1] != k:
            raise KstepError(
                f"KSLLoss needs a TensorDict (B, k) with k = {k}, not {tuple(tensordict.shape)}; "
                f"what a SliceSampler with slice_len={k} draws becomes one by .reshape(-1, {k})"
            )
        first, action, following, done = (self._read(tensordict, key) for key in self.in_keys)
        mask = self.ksl.mask_after(done.reshape(tensordict.shape))
        auto = self.loss_mask_key == "auto"
        for key in AUTO_LOSS_MASK_KEYS if auto else filter(None, [self.loss_mask_key]):
            valid = tensordict.get(key, default=None)
            if valid is not None:
                mask = mask & valid.reshape(tensordict.shape)
        observations = following.new_empty((len(following), k + 1, *following.shape[2:]))
        observations[:, 0], observations[:, 1:] = first[:, 0], following
        loss = self.ksl.loss(self.encoder, observations, action, mask)
        return TensorDict({"loss_ksl": loss})

    @staticmethod
    def _read(tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        found: Tensor | None = tensordict.get(key, default=None)
        if found is None:
            there = ", ".join(map(repr, tensordict.keys(include_nested=True, leaves_only=True)))
            raise KstepError(
                f"KSLLoss needs {key!r}, and the TensorDict has {there}: "
                "loss.set_keys(observation=..., action=..., done=...) tells it other names"
            )
        return found

    def update_slow(self) -> None:
        """Move the slow copies, once per learning step; a `Trainer` can do so after each step:

        trainer.register_op("post_optim", loss.update_slow)
        """
        self.ksl.update_slow(self.encoder)
