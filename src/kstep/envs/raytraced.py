"""placeholder"""

from typing import Any


class RayTracer:
    def __init__(self, model: Any, height: int, width: int, camera: int) -> None: ...
    def draw(self, data: Any, model: Any) -> Any: ...
