"""Measures a turn in the databases: statements, write-ahead log and CPU, compared with Redis.

python -m bench.databases [--memory postgresql,redis,redis-alone] [--callers 4] [--turns 12] [--pause 1.5]

Callers with a user id talk to a real server with ``config/agora.yaml``, each in a separate call. With a pause
of more than a second a call is archived after each turn, which costs the most. The statements of sessions,
archive and facts are counted in PostgreSQL's log, without BEGIN and COMMIT and without messages between
hosts; the table also has those of a minute without any turn. The first turn of each call is left out, and so
are the full pages that are written after a checkpoint.
"""

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import asyncpg
import uvloop

from bench.engine import Conversation, Line
from bench.peers import turnkeeper
from bench.serving import Running, free_port, running
from tests.peers.postgres_server import PostgresServer
from tests.peers.redis_server import RedisServer, closing

MEMORIES = ("postgresql", "redis", "redis-alone")
"""All in PostgreSQL; sessions in Redis and the rest in PostgreSQL; sessions in Redis, and no archive."""
_CONFIG = Path("config/agora.yaml")
_MODEL = "paced-4-5"
_STATEMENT = re.compile(r"LOG:  (?:execute [^:]*|statement):\s*(.*)")
_TABLE = re.compile(r"\bturnkeeper_[a-z]")
_WAL = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"
_SETTLED = 3.0


class Cost(NamedTuple):
    """The cost of one turn: statements by their beginning, bytes of log, and milliseconds of CPU.

    ``resting`` is the number of statements in a second without turns.
    """

    statements: Counter[str]
    turns: int
    resting: float
    wal: float
    server: float
    postgres: float
    redis: float

    @property
    def count(self) -> float:
        """The statements of one turn."""
        return self.statements.total() / self.turns

    @property
    def row(self) -> str:
        """The row of the table."""
        return (
            f"{self.count:.1f} | {self.resting * 60:.0f} | {self.wal:.0f}"
            f" | {self.server:.2f} | {self.postgres:.2f} | {self.redis:.2f}"
        )


async def measure(
    server: Running,
    port: int,
    postgres: PostgresServer,
    redis: RedisServer | None,
    asked: argparse.Namespace,
) -> Cost:
    """Runs calls, and measures all turns after the first of each call."""
    processes = [server, Running(postgres.pid, 0.0), *([Running(redis.process.pid, 0.0)] if redis else ())]
    lines = [Line("127.0.0.1", port) for _ in range(asked.callers)]
    calls = [
        Conversation(line, _MODEL, f"x-session-id: call-{n}\r\nx-user-id: user-{n}\r\n")
        for n, line in enumerate(lines)
    ]
    await _turn(calls, asked.pause)
    await asyncio.sleep(_SETTLED)
    log = postgres.socket.parent / "log"
    began = log.stat().st_size
    await asyncio.sleep(asked.rest)
    at_rest = _statements(log, began, asked.width)
    wal, spent = await _wal(postgres), [process.spent().seconds for process in processes]
    position, began_at = log.stat().st_size, time.monotonic()
    for _ in range(asked.turns):
        await _turn(calls, asked.pause)
    await asyncio.sleep(_SETTLED)
    seconds, count = time.monotonic() - began_at, asked.callers * asked.turns
    cpu = [
        1000 * (process.spent().seconds - before) / count
        for process, before in zip(processes, spent, strict=True)
    ]
    statements = _statements(log, position, asked.width)
    for statement, times in at_rest.items():
        statements[statement] -= round(times / asked.rest * seconds)
    wal = await _wal(postgres) - wal
    for line in lines:
        line.close()
    by_server, by_postgres, by_redis = *cpu, *([] if redis else [0.0])
    return Cost(
        +statements, count, at_rest.total() / asked.rest, wal / count, by_server, by_postgres, by_redis
    )


def _statements(log: Path, start: int, width: int) -> Counter[str]:
    """Returns the statements in the log from a position on, by their beginnings."""
    with log.open() as text:
        text.seek(start)
        lines = text.read().replace("\n\t", " ").splitlines()
    found = [match[1] for match in map(_STATEMENT.search, lines) if match and _TABLE.search(match[1])]
    return Counter(" ".join(one.split())[:width] for one in found)


async def _turn(calls: list[Conversation], pause: float) -> None:
    async def one(number: int, call: Conversation) -> None:
        await asyncio.sleep(pause * number / len(calls))
        await call.turn()

    await asyncio.gather(*(one(*each) for each in enumerate(calls)))
    await asyncio.sleep(pause)


async def _wal(postgres: PostgresServer) -> int:
    connection = await asyncpg.connect(postgres.url())
    try:
        return int(await connection.fetchval(_WAL))
    finally:
        await connection.close()


def run(kind: str, asked: argparse.Namespace) -> Cost:
    """Returns the cost of a turn with one kind of memory."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, model, port = Path(name), free_port(), free_port()
        postgres = PostgresServer()
        stack.callback(postgres.close)
        postgres.ask("ALTER SYSTEM SET log_statement = 'all'", "ALTER SYSTEM SET full_page_writes = off")
        postgres.stop()
        postgres.start()
        command = [sys.executable, "-m", "bench.model", str(model)]
        at = f"http://127.0.0.1:{model}/"
        stack.enter_context(running(command, at, core=None, environ={}, log=folder / "model.log"))
        memory, archive, redis = postgres.url(), postgres.url(), None
        if kind != "postgresql":
            redis = stack.enter_context(closing([RedisServer(folder)]))[0]
            memory = redis.url
            archive = archive if kind == "redis" else ""
        system = turnkeeper(_CONFIG, port, model, memory)
        environ = {**system.environ, "ARCHIVE_URL": archive}
        url, log = f"http://127.0.0.1:{port}{system.path}", folder / "server.log"
        server = stack.enter_context(running(system.command, url, core=None, environ=environ, log=log))
        return uvloop.run(measure(server, port, postgres, redis, asked))


def main() -> None:
    """Prints a row for each kind of memory."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--memory", default=[*MEMORIES], type=lambda text: text.split(","))
    options.add_argument("--callers", default=4, type=int)
    options.add_argument("--turns", default=12, type=int)
    options.add_argument("--pause", default=1.5, type=float)
    options.add_argument("--width", default=90, type=int, help="of a statement that is listed")
    options.add_argument("--list", action="store_true", help="the statements, too")
    options.add_argument("--rest", default=15.0, type=float, help="seconds in which nothing is said")
    asked = options.parse_args()
    print(
        "| memory | statements | a minute at rest | log, bytes | CPU of the server, ms | of PostgreSQL, ms"
        " | of Redis, ms |"
    )
    print("|---|---|---|---|---|---|---|")
    for kind in asked.memory:
        cost = run(kind, asked)
        print(f"| {kind} | {cost.row} |", flush=True)
        if asked.list:
            for statement, count in cost.statements.most_common():
                print(f"  {count / cost.turns:6.2f} {statement}")


if __name__ == "__main__":
    main()
