"""All that can go wrong, each with the status and the body that the client gets.

TurnkeeperError
├── RequestError                400  the request cannot be read
│   ├── Unauthorized            401  no key, or one that we do not know
│   ├── Forbidden               403  a key, or a host name, that may not do this
│   ├── NotFound                404  no such path, pipeline, model or memory
│   ├── MethodNotAllowed        405
│   ├── Conflict                409  it exists already, or others are writing it
│   │   └── SessionsUnreadable  409  who is forgotten may be in what nobody can read
│   ├── Superseded              409  a newer request asks for the same turn
│   ├── TooSlow                 408  the request does not arrive
│   ├── TooLarge                413
│   ├── HeadTooLarge            431
│   └── UnsupportedEncoding     415
├── LimitExceeded           429  more than the settings allow a key
├── FilterFailed            500  a filter, most likely one of the user's own
├── ShuttingDown                503  the server ends before the answer does
├── MemoryUnavailable           503  the store does not answer
├── UpstreamError               502  the model cannot be reached, or talks nonsense
│   ├── UpstreamUnreachable     502  no connection
│   ├── NoFilesLeft             503  no connection, and none of its doing
│   ├── UpstreamBroken          502  the answer broke off, or is no HTTP
│   ├── UpstreamRedirected      502  the model is somewhere else
│   ├── UpstreamTimeout         504  too late
│   └── UpstreamRefused         as the upstream said, with its own body
└── ConfigError                 —    the configuration is wrong; nothing is served
"""

from proxy.errors.error import TurnkeeperError
from proxy.errors.limit import LimitExceeded
from proxy.errors.openai_error import openai_error
from proxy.errors.request import (
    Conflict,
    Forbidden,
    HeadTooLarge,
    MethodNotAllowed,
    NotFound,
    RequestError,
    SessionsUnreadable,
    Superseded,
    TooLarge,
    TooSlow,
    Unauthorized,
    UnsupportedEncoding,
)
from proxy.errors.server import ConfigError, FilterFailed, MemoryUnavailable, ShuttingDown
from proxy.errors.upstream import (
    NoFilesLeft,
    UpstreamBroken,
    UpstreamError,
    UpstreamRedirected,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)

__all__ = [
    "ConfigError",
    "Conflict",
    "FilterFailed",
    "Forbidden",
    "HeadTooLarge",
    "LimitExceeded",
    "MemoryUnavailable",
    "MethodNotAllowed",
    "NoFilesLeft",
    "NotFound",
    "RequestError",
    "SessionsUnreadable",
    "ShuttingDown",
    "Superseded",
    "TooLarge",
    "TooSlow",
    "TurnkeeperError",
    "Unauthorized",
    "UnsupportedEncoding",
    "UpstreamBroken",
    "UpstreamError",
    "UpstreamRedirected",
    "UpstreamRefused",
    "UpstreamTimeout",
    "UpstreamUnreachable",
    "openai_error",
]
