"""Addresses of Redis and of PostgreSQL, parsed before anything is connected."""

import re
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from proxy.hostname import ADVICE, is_host_name

Node = tuple[str, int]

SINGLE, UNIX, SENTINEL, CLUSTER = "single", "unix", "sentinel", "cluster"

_FORMS: Final = {"": SINGLE, "unix": UNIX, "sentinel": SENTINEL, "cluster": CLUSTER}
_PORT, _SENTINEL_PORT, _MAX_PORT = 6379, 26379, 65535
_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_NODE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, kw_only=True)
class RedisAddress:
    """A parsed address of Redis. ``nodes`` are the server, the Sentinels or any nodes of the Cluster."""

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
    def parse(cls, url: str) -> "RedisAddress":
        """Parses ``redis://``, ``rediss://``, ``redis+sentinel://``, ``redis+cluster://``, ``redis+unix://``.

        Raises ValueError, without the address, which may contain a password.
        """
        scheme, _, rest = url.partition("://")
        rest, _, query = rest.partition("?")
        name, _, suffix = scheme.lower().partition("+")
        if name not in {"redis", "rediss"} or suffix not in _FORMS or (name, suffix) == ("rediss", "unix"):
            _refuse(
                "Redis",
                "it begins with redis:// or rediss://, with +sentinel, +cluster or +unix before the colon",
            )
        form = _FORMS[suffix]
        place, _, path = rest.partition("/")
        credentials, _, hosts = place.rpartition("@")
        user, _, password = credentials.partition(":")
        nodes = _parse_nodes(hosts, form)
        path, service = unquote(path), ""
        if form == UNIX:
            path, db = ("/" + path if path else _refuse("Redis", "the socket's path is missing")), 0
        else:
            if form == SENTINEL:
                service, _, path = path.partition("/")
                service = service or _refuse("Redis", "the name of the service comes after the Sentinels")
            path, db = "", _parse_db(form, path)
        address = cls(
            form=form,
            nodes=nodes,
            path=path,
            service=service,
            db=db,
            user=unquote(user) or None,
            password=unquote(password) or None,
            tls={} if name == "rediss" else None,
        )
        return _with_options(address, query)


def _parse_nodes(hosts: str, form: str) -> tuple[Node, ...]:
    if form == UNIX:
        if hosts:
            _refuse("Redis", "a socket's path has three slashes before it: redis+unix:///run/…")
        return ()
    nodes, default_port = [], _SENTINEL_PORT if form == SENTINEL else _PORT
    for host in hosts.split(","):
        match = _NODE.fullmatch(host)
        if not match or not _is_port(match[2] or str(default_port)):
            _refuse("Redis", "hosts are written host:port, with a comma between two")
        name = match[1].strip("[]")
        if not is_host_name(name):
            _refuse("Redis", ADVICE)
        nodes.append((name, int(match[2] or default_port)))
    if form == SINGLE and len(nodes) > 1:
        _refuse("Redis", "several hosts are for redis+sentinel:// and redis+cluster://")
    return tuple(nodes)


def _parse_db(form: str, number: str) -> int:
    if not re.fullmatch(r"[0-9]{0,5}", number):
        _refuse("Redis", "the database is a number")
    db = int(number or 0)
    return db if form != CLUSTER or not db else _refuse("Redis", "a Cluster has no database but 0")


def _with_options(address: RedisAddress, query: str) -> RedisAddress:
    options = dict(parse_qsl(query, keep_blank_values=True))
    tls: dict[str, str] = {name: options.pop(name) for name in _TLS_OPTIONS if name in options}
    if tls and address.tls is None:
        _refuse("Redis", "the ssl_ options are for rediss://")
    prefix = options.pop("prefix", address.prefix)
    if re.search(r"[{}\s]", prefix):
        _refuse("Redis", "a prefix has no braces, which would choose the slot, and no spaces")
    form = address.form
    allowed = {SENTINEL: {"sentinel_user", "sentinel_password"}, UNIX: {"db"}}.get(form, set())
    if not options.keys() <= allowed:
        _refuse("Redis", f"its options are {', '.join(['prefix', *_TLS_OPTIONS, *sorted(allowed)])}")
    others: dict[str, Any] = options
    if "db" in options:
        others = {"db": _parse_db(form, options["db"])}
    return replace(address, prefix=prefix, tls=None if address.tls is None else tls, **others)


# --- PostgreSQL

_HOST: Final = re.compile(
    r"/.*|(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|(?P<name>[^\s:\[\]@/]+))(?::(?P<port>[0-9]{1,5}))?"
)
_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_HOW: Final = (
    "write postgresql://user:password@host:port/database, and in a password %40 for '@', %3A for ':',"
    " %2F for '/', %3F for '?', %23 for '#', %5B for '[' and %25 for '%'"
)


def checked_postgres_address(url: str) -> str:
    """Returns an address if the driver can parse it; the driver would check it only when it connects.

    Raises ValueError, without the address, which may contain a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        _refuse("PostgreSQL", _HOW)
    before, at, hosts = parts.netloc.partition("@")
    if parts.fragment or (not at and "@" in parts.path + parts.query):
        _refuse("PostgreSQL", _HOW)
    _check_hosts(hosts if at else before)
    try:
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        _refuse("PostgreSQL", "its options are written name=value, with & between two")
    _check_hosts(options.get("host", [""])[-1])
    if not all(map(_is_port, options.get("port", ["5432"])[-1].split(","))):
        _refuse("PostgreSQL", f"a port is a number from 1 to {_MAX_PORT}")
    if options.get("sslmode", ["prefer"])[-1] not in _MODES:
        _refuse("PostgreSQL", f"sslmode is one of {', '.join(_MODES)}")
    return url


def _check_hosts(text: str) -> None:
    for host in text.split(",") if text else ():
        match = _HOST.fullmatch(host)
        if not match or not _is_port(match["port"] or "5432"):
            _refuse("PostgreSQL", _HOW)
        name = unquote(match["name"] or "/")  # a socket's path may be given as the host
        if not name.startswith("/") and not is_host_name(name):
            _refuse("PostgreSQL", ADVICE)


def _is_port(text: str) -> bool:
    return text.isdecimal() and 0 < int(text[:6]) <= _MAX_PORT


def _refuse(server: str, why: str) -> NoReturn:
    raise ValueError(f"the address of {server} cannot be understood: {why}") from None
