"""What a turn costs in the databases: statements, write-ahead log and CPU, beside what it costs on Redis.

python -m bench.databases [--memory postgresql,redis,redis-alone] [--callers 4] [--turns 12] [--pause 1.5]

Callers with a user talk to ``config/agora.yaml``, each in a call of its own, over a real server. With a pause
of more than a second a call is archived after each turn, which costs the most. Statements are those of
sessions, archive and facts together, in PostgreSQL's own log, without BEGIN and COMMIT. The first turn of
each call is left out, and so are pages that are written whole behind a checkpoint.
"""

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import uvloop

from bench.caller import Talk
from bench.peers import turnkeeper
from bench.serving import Running, free_port, running
from tests.peers.postgres_server import PostgresServer
from tests.peers.redis_server import RedisServer, closing

MEMORIES = ("postgresql", "redis", "redis-alone")
"""All in PostgreSQL; sessions in Redis and the rest in PostgreSQL; sessions in Redis, and no archive."""
_CONFIG = Path("config/agora.yaml")
_STATEMENT = re.compile(r"LOG:  (?:execute [^:]*|statement): (.*)")
_FRAME = re.compile(r"(?:BEGIN|COMMIT|ROLLBACK)\b")
_WAL = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"
_SETTLED = 3.0


class Cost(NamedTuple):
    """What one turn costs: statements by their beginning, bytes of log, and milliseconds of CPU."""

    statements: Counter[str]
    turns: int
    wal: float
    server: float
    database: float

    @property
    def row(self) -> str:
        """A row of the table."""
        count = self.statements.total() / self.turns
        return f"{count:.1f} | {self.wal:.0f} | {self.server:.2f} | {self.database:.2f}"


async def measure(server: Running, port: int, postgres: PostgresServer, asked: argparse.Namespace) -> Cost:
    """Talks, and measures all turns behind the first of each call."""
    talks = [Talk(port, f"call-{number}") for number in range(asked.callers)]
    await _turn(talks, 0, asked.pause)
    await asyncio.sleep(_SETTLED)
    log = postgres.socket.parent / "log"
    position, wal = log.stat().st_size, await _wal(postgres)
    spent, own = server.spent().seconds, Running(postgres.pid, 0.0)
    database = own.spent().seconds
    for turn in range(1, asked.turns + 1):
        await _turn(talks, turn, asked.pause)
    await asyncio.sleep(_SETTLED)
    count = asked.callers * asked.turns
    spent, database = server.spent().seconds - spent, own.spent().seconds - database
    with log.open() as text:
        text.seek(position)
        found = [match[1] for match in map(_STATEMENT.search, text) if match]
    statements = Counter(
        " ".join(one.split())[: asked.width]
        for one in found
        if not _FRAME.match(one) and "pg_current" not in one[:20]
    )
    wal = await _wal(postgres) - wal
    for talk in talks:
        talk.close()
    return Cost(statements, count, wal / count, 1000 * spent / count, 1000 * database / count)


async def _turn(talks: list[Talk], turn: int, pause: float) -> None:
    async def one(number: int, talk: Talk) -> None:
        await asyncio.sleep(pause * number / len(talks))
        said: dict[str, Any] = {
            "role": "user",
            "turn_id": turn,
            "timestamp": 1790000000000 + turn * 5000,
            "metadata": {"source": "asr", "user": f"u-{number}"},
            "content": f"Question {turn}: please tell me about the weather in Lisbon tomorrow morning.",
        }
        await talk.turn(said)

    await asyncio.gather(*(one(*each) for each in enumerate(talks)))
    await asyncio.sleep(pause)


async def _wal(postgres: PostgresServer) -> int:
    connection = await asyncpg.connect(postgres.url())
    try:
        return int(await connection.fetchval(_WAL))
    finally:
        await connection.close()


def run(kind: str, asked: argparse.Namespace) -> Cost:
    """The cost of a turn with one kind of memory."""
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
        memory, archive = postgres.url(), postgres.url()
        if kind != "postgresql":
            memory = stack.enter_context(closing([RedisServer(folder)]))[0].url
            archive = archive if kind == "redis" else ""
        system = turnkeeper(_CONFIG, port, model, memory)
        environ = {**system.environ, "ARCHIVE_URL": archive}
        url, log = f"http://127.0.0.1:{port}{system.path}", folder / "server.log"
        server = stack.enter_context(running(system.command, url, core=None, environ=environ, log=log))
        return uvloop.run(measure(server, port, postgres, asked))


def main() -> None:
    """Prints a row for each kind of memory."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--memory", default=[*MEMORIES], type=lambda text: text.split(","))
    options.add_argument("--callers", default=4, type=int)
    options.add_argument("--turns", default=12, type=int)
    options.add_argument("--pause", default=1.5, type=float)
    options.add_argument("--width", default=90, type=int, help="of a statement that is listed")
    options.add_argument("--list", action="store_true", help="the statements, too")
    asked = options.parse_args()
    print("| memory | statements | log, bytes | CPU of the server, ms | CPU of PostgreSQL, ms |")
    print("|---|---|---|---|---|")
    for kind in asked.memory:
        cost = run(kind, asked)
        print(f"| {kind} | {cost.row} |", flush=True)
        if asked.list:
            for statement, count in cost.statements.most_common():
                print(f"  {count / cost.turns:6.2f} {statement}")


if __name__ == "__main__":
    main()
