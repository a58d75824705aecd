"""Policies without what only learning needs: encoder and actor, a few megabytes.

A file has their weights (safetensors) and, in its header, which experiment they are of and how far
that was. A run keeps them over training where asked for (`policies/`); an agent that comes with the
package is a folder with a config.json and one such file (`zoo.py`). Loading executes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import annotated_types as at
import safetensors.torch
import torch
from torch import Tensor, nn

from kstep import reading
from kstep.agent import Agent
from kstep.run import checkpoint
from kstep.run.folder import Run
from kstep.types import Counts, KstepError
from kstep.values import decode, encode

FORMAT = 1
KEY = "kstep policy"
"""Of the description in a file's header."""


@dataclass(frozen=True)
class Description:
    """What a file's header says of its weights."""

    format: int
    digest: str
    """Of the experiment."""
    counts: Counts
    phase: Annotated[int, at.Ge(0), at.Le(1)]


def acting(agent: Agent) -> dict[str, Tensor]:
    """Return the weights that choose greedy actions, by the names they have in a checkpoint."""
    actor = getattr(agent.core, "actor", None)
    # Where there is none, values choose.
    of_core = "core/actor." if isinstance(actor, nn.Module) else "core/"
    state = {
        f"{name}/{key}": tensor
        for name, module in (("encoder", agent.encoder), ("core", agent.core))
        for key, tensor in module.state_dict().items()
    }
    return {key: state[key] for key in state if key.startswith(("encoder/", of_core))}


def save(run: Run, agent: Agent, counts: Counts, mark: int) -> Path:
    """Save the policy of a run for the mark just reached."""
    path = run.policies / f"{mark:09d}.safetensors"
    run.tree.make(run.policies)
    run.tree.write(path, packed(run, agent, counts))
    return path


def packed(run: Run, agent: Agent, counts: Counts, dtype: torch.dtype = torch.float32) -> bytes:
    """Return a file of the agent's policy, its weights rounded to a type."""
    about = Description(FORMAT, run.digest, counts, agent.phase)
    tensors = {name: value.to(dtype).contiguous() for name, value in acting(agent).items()}
    return safetensors.torch.save(tensors, {KEY: json.dumps(encode(about))})


def describe(path: Path) -> Description:
    """Read what a file's header says."""
    header = reading.tensor_metadata(path)
    if KEY not in header:
        raise reading.Unreadable(f"{path} is not a policy that kstep saved")
    with reading.naming(path):
        about: Description = decode(Description, reading.parse_json(header[KEY]))
        if about.format != FORMAT:
            raise KstepError(f"it has format {about.format}, this version of kstep reads {FORMAT}")
    return about


def load(run: Run, agent: Agent, path: Path) -> Counts:
    """Let an agent act as the saved policy does. What only learning needs stays as it was."""
    about = describe(path)
    if about.digest != run.written_digest:
        raise KstepError(f"{path} belongs to another experiment")
    weights = reading.weights(reading.contents(path, reading.LARGEST_TENSORS), path)
    if about.phase and run.experiment.method.exploration is None:
        raise KstepError(f"{path} is of a second phase, which its method does not have")
    if about.phase > agent.phase:
        agent.begin_task()
    needed = acting(agent)
    wrong = [
        name
        for name in {**needed, **weights}
        if name not in needed or name not in weights or needed[name].shape != weights[name].shape
    ]
    if wrong:
        raise KstepError(f"{path} does not fit its experiment: {wrong[0][:100]!r}")
    with torch.no_grad():
        for name, tensor in needed.items():
            tensor.copy_(weights[name])
    agent.updates = about.counts.updates
    return about.counts


def only_policy(run: Run, at: int | None = None) -> Path | None:
    """Return the file of a policy, which can act but not learn, if that is all there is of a run at
    these env_steps, or at its newest moment."""
    if at is None:
        return run.policy_file if run.policy_file.exists() else None
    return next((path for path in run.saved_policies() if int(path.stem) == at), None)


def weights(
    run: Run, agent: Agent, passed_over: Callable[[str], None], at: int | None = None
) -> Counts:
    """Load a run's newest weights, or those of a checkpoint or a saved policy at these env_steps,
    for acting only. `passed_over` is told of newer checkpoints that are damaged."""
    policy = only_policy(run, at)
    if policy is not None:
        return load(run, agent, policy)
    seen: list[int] = []

    def chosen(state: checkpoint.Weights) -> None:
        seen.append(state.counts.env_steps)
        if at is not None and state.counts.env_steps != at:
            raise KstepError(f"it is at {state.counts.env_steps:,} env steps")

    try:
        return checkpoint.load_weights(run, agent, passed_over if at is None else None, chosen)
    except KstepError:
        if at is None or at in seen:
            raise
    saved = [int(path.stem) for path in run.saved_policies()]
    have = ", ".join(f"{mark:,}" for mark in sorted({*saved, *seen})) or "none"
    raise KstepError(
        f"{run.folder} has no policy at {at:,} env steps; it has: {have}. "
        "kstep train --save-policies-every N keeps more of them"
    )
