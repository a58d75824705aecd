"""What flags of the command line may say; imports nothing heavy."""

from __future__ import annotations

from typing import Literal, TypeAlias

Overlay: TypeAlias = Literal["actions", "reward", "looks", "predictions"]
"""What `kstep film` draws over pictures."""
