"""What of the product runs: every call of a function of it, in all threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PRODUCT = (f"{ROOT / 'proxy'}/", f"{ROOT / 'filters'}/")


class Function(NamedTuple):
    """A function of the product; ``name`` is its qualified one."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


class Calls:
    """The calls of threads that started since."""

    def __init__(self) -> None:
        self._codes: list[CodeType] = []

    def profile(self, frame: FrameType, event: str, _arg: Any) -> None:
        """For ``sys.setprofile``."""
        if event == "call" and frame.f_code.co_filename.startswith(PRODUCT):
            self._codes.append(frame.f_code)

    def collect(self) -> list[Function]:
        """The functions that were called since the last time, in order, as often as they were called."""
        codes, self._codes = self._codes, []
        return [
            Function(str(Path(code.co_filename).relative_to(ROOT)), code.co_firstlineno, code.co_qualname)
            for code in codes
        ]


@contextmanager
def recorded() -> Iterator[Calls]:
    """The calls of threads that start within."""
    calls = Calls()
    threading.setprofile(calls.profile)
    try:
        yield calls
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
