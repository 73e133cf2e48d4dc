"""What stands behind the question mark of an address."""

from urllib.parse import parse_qsl

from proxy.errors import RequestError

_MOST_PARAMETERS = 100


def query_of(raw: bytes) -> dict[str, str]:
    """The parameters, the first of each name. Raises RequestError where there are more than 100."""
    if not raw:
        return {}
    try:
        pairs = parse_qsl(_text(raw), max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        raise RequestError(f"The query has more than {_MOST_PARAMETERS} parameters.") from None
    return dict(reversed(pairs))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
