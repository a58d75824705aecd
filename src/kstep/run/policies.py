"""Policies without what only learning needs: encoder and actor, a few megabytes.

A file has their weights (safetensors) and, in its header, which experiment they are of and how far
that was. A run keeps them over training where asked for (`policies/`); an agent that comes with the
package is a folder with a config.json and one such file (`zoo.py`). Loading executes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import annotated_types as at
import safetensors.torch
import torch
from torch import Tensor, nn

from kstep import reading
from kstep.agent import Agent
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
