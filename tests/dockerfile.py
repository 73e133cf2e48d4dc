"""A Dockerfile as values, and what .dockerignore lets through: as much as this project's own needs."""

import json
import re
import shlex
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Instruction:
    word: str
    flags: dict[str, str]
    rest: str

    @property
    def command(self) -> list[str]:
        """A CMD or HEALTHCHECK in exec form; a ValueError for one in shell form."""
        return json.loads(self.rest.removeprefix("CMD").strip())


@dataclass(frozen=True)
class Stage:
    base: str
    name: str | None
    instructions: tuple[Instruction, ...]

    def all(self, word: str) -> list[Instruction]:
        return [each for each in self.instructions if each.word == word]

    def last(self, word: str) -> Instruction:
        return self.all(word)[-1]

    @property
    def environment(self) -> dict[str, str]:
        words = " ".join(each.rest for each in self.all("ENV")).split()
        return dict(word.split("=", 1) for word in words)

    @property
    def labels(self) -> dict[str, str]:
        words = shlex.split(" ".join(each.rest for each in self.all("LABEL")))
        return dict(word.split("=", 1) for word in words)

    @property
    def sources(self) -> list[str]:
        """What COPY and ADD take from the project's folder."""
        copies = [each for each in self.all("COPY") + self.all("ADD") if "from" not in each.flags]
        return [source for each in copies for source in each.rest.split()[:-1]]


def read(text: str) -> list[Stage]:
    instructions = whole(text)
    starts = [i for i, each in enumerate(instructions) if each.word == "FROM"]
    return [stage(instructions[i:j]) for i, j in zip(starts, [*starts[1:], None], strict=True)]


def defaults(text: str) -> dict[str, str]:
    """What stands for each ARG before the first stage unless the build names something else."""
    instructions = whole(text)
    first = next(i for i, each in enumerate(instructions) if each.word == "FROM")
    return dict(each.rest.split("=", 1) for each in instructions[:first] if each.word == "ARG")


def whole(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [instruction(line) for line in joined.splitlines() if line.strip()]


def instruction(line: str) -> Instruction:
    word, rest = line.split(maxsplit=1)
    flags = {}
    while flag := re.match(r"--([\w-]+)=(\S+)\s+", rest):
        flags[flag[1]] = flag[2]
        rest = rest[flag.end() :]
    return Instruction(word.upper(), flags, rest.strip())


def stage(instructions: list[Instruction]) -> Stage:
    base, *name = re.split(r"\s+AS\s+", instructions[0].rest, flags=re.IGNORECASE)
    return Stage(base, name[0] if name else None, tuple(instructions[1:]))


def is_sent(path: str, ignore: str) -> bool:
    """Whether a file of the project reaches the builder; the last line of .dockerignore that fits decides."""
    sent = True
    for line in ignore.splitlines():
        pattern = line.strip().removeprefix("!")
        if pattern and not pattern.startswith("#") and fits(path, pattern.strip("/")):
            sent = line.startswith("!")
    return sent


def fits(path: str, pattern: str) -> bool:
    """Whether a pattern fits a path or a folder above it; ``**/`` stands for any folders, or none."""
    tails = [path, *(str(above) for above in PurePosixPath(path).parents if above.name)]
    if pattern.startswith("**/"):
        depth = pattern.removeprefix("**/").count("/") + 1
        return any(same("/".join(tail.split("/")[-depth:]), pattern.removeprefix("**/")) for tail in tails)
    return any(same(tail, pattern) for tail in tails)


def same(path: str, pattern: str) -> bool:
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
