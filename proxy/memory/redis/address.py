"""Where a Redis is, and how it is reached."""

import re
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote

from proxy.hostname import ADVICE, is_host_name

Node = tuple[str, int]

SINGLE, UNIX, SENTINEL, CLUSTER = "single", "unix", "sentinel", "cluster"
_FORMS = {"": SINGLE, "unix": UNIX, "sentinel": SENTINEL, "cluster": CLUSTER}
_PORTS = {SENTINEL: 26379}
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_NODE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, kw_only=True)
class Address:
    """An address, taken apart. ``nodes`` are the Sentinels for Sentinel, and any nodes for Cluster."""

    form: str
    nodes: tuple[Node, ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_user: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: dict[str, str] | None = None
    prefix: str = "turnkeeper:"

    @classmethod
    def of(cls, written: str) -> "Address":
        """The parts of ``redis://``, ``rediss://``, ``redis+sentinel://``, ``redis+cluster://``, ``redis+unix://``.

        Raises ValueError, which never shows what was written: it may hold a password.
        """
        scheme, _, rest = written.partition("://")
        rest, _, query = rest.partition("?")
        secured, form = _scheme(scheme)
        place, _, path = rest.partition("/")
        credentials, _, hosts = place.rpartition("@")
        user, _, password = credentials.partition(":")
        found = cls(
            form=form,
            nodes=_nodes(hosts, form),
            user=unquote(user) or None,
            password=unquote(password) or None,
            tls={} if secured else None,
        )
        return _with_options(_with_path(found, unquote(path)), query)


def _scheme(scheme: str) -> tuple[bool, str]:
    name, _, form = scheme.lower().partition("+")
    if name not in {"redis", "rediss"} or form not in _FORMS or (name, form) == ("rediss", "unix"):
        _refuse("it begins with redis:// or rediss://, with +sentinel, +cluster or +unix before the colon")
    return name == "rediss", _FORMS[form]


def _nodes(hosts: str, form: str) -> tuple[Node, ...]:
    if form == UNIX:
        return (
            () if not hosts else _refuse("a socket's path has three slashes before it: redis+unix:///run/…")
        )
    nodes = tuple(_node(host, _PORTS.get(form, 6379)) for host in hosts.split(","))
    if form == SINGLE and len(nodes) > 1:
        _refuse("several hosts are for redis+sentinel:// and redis+cluster://")
    return nodes


def _node(written: str, port: int) -> Node:
    found = _NODE.fullmatch(written)
    if not found or not 0 < int(found[2] or port) < 65536:  # noqa: PLR2004  (the highest port)
        _refuse("hosts are written host:port, with a comma between two")
    name = found[1].strip("[]")
    return (name if is_host_name(name) else _refuse(ADVICE)), int(found[2] or port)


def _with_path(found: Address, path: str) -> Address:
    if found.form == UNIX:
        return replace(found, path="/" + path) if path else _refuse("the socket's path is missing")
    if found.form == SENTINEL:
        service, _, path = path.partition("/")
        found = replace(
            found, service=service or _refuse("the name of the service comes after the Sentinels")
        )
    return replace(found, db=_db(found.form, path))


def _db(form: str, written: str) -> int:
    if not re.fullmatch(r"[0-9]{0,5}", written):
        _refuse("the database is a number")
    db = int(written or 0)
    return db if form != CLUSTER or not db else _refuse("a Cluster has no database but 0")


def _with_options(found: Address, query: str) -> Address:
    options = dict(parse_qsl(query, keep_blank_values=True))
    tls = {name: options.pop(name) for name in _TLS_OPTIONS if name in options}
    if tls and found.tls is None:
        _refuse("the ssl_ options are for rediss://")
    prefix = options.pop("prefix", found.prefix)
    if re.search(r"[{}\s]", prefix):
        _refuse("a prefix has no braces, which would choose the slot, and no spaces")
    found = replace(found, prefix=prefix, tls=None if found.tls is None else tls)
    return replace(found, **_rest(found.form, options))


def _rest(form: str, options: dict[str, str]) -> dict[str, Any]:
    allowed = {SENTINEL: {"sentinel_user", "sentinel_password"}, UNIX: {"db"}}.get(form, set())
    if not options.keys() <= allowed:
        _refuse(f"its options are {', '.join(['prefix', *_TLS_OPTIONS, *sorted(allowed)])}")
    return {name: _db(form, value) if name == "db" else value for name, value in options.items()}


def _refuse(why: str) -> NoReturn:
    raise ValueError(f"the address of Redis cannot be understood: {why}")
