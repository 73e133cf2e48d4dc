"""A stand-in for the library of Mem0: as much of it as is called."""

import itertools
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any


class History:
    """What the library remembers of changes."""

    def __init__(self, _path: str = ":memory:") -> None:
        self.texts: list[str] = []


class Library:
    """In the place of ``mem0.Memory``."""

    @classmethod
    def from_config(cls, options: Any) -> "Library":
        return cls()

    def __init__(self) -> None:
        self.vector_store = SimpleNamespace()
        self.rows: dict[str, dict[str, Any]] = {}
        self.db = History()
        self.names = itertools.count()
        self.broken = False

    def add(self, messages: Any, *, user_id: str, metadata: Any, infer: bool) -> None:
        assert infer is False
        if self.broken:
            raise RuntimeError(f"cannot keep {messages}")
        row = f"row{next(self.names)}"
        text = messages[0]["content"]
        self.rows[row] = {"id": row, "memory": text, "metadata": metadata, "user_id": user_id}
        self.db.texts.append(text)

    def get_all(self, *, filters: Any, top_k: int) -> Any:
        rows = [row for row in self.rows.values() if row["user_id"] == filters["user_id"]]
        return {"results": rows[:top_k]}

    def delete(self, row: str) -> None:
        del self.rows[row]

    def delete_all(self, *, user_id: str) -> None:
        self.rows = {name: row for name, row in self.rows.items() if row["user_id"] != user_id}

    def close(self) -> None:
        self.rows.clear()


def installed() -> ModuleType:
    """The module in place of an installed Mem0."""
    module = ModuleType("mem0")
    module.__spec__ = ModuleSpec("mem0", None)
    module.Memory = Library
    return module
