from typing import Annotated

from pydantic import AfterValidator, SecretStr

from proxy.configuration.advice import advising
from proxy.configuration.part import Part
from proxy.configuration.value import Place, signing_secret


class Identity(Part):
    """Where a pipeline finds out whose turn it is; the first place that says something counts."""

    session: tuple[Place, ...] | None = None
    """Where the session's name stands; left out, the usual places of each dialect."""
    user: tuple[Place, ...] | None = None
    """Where the user's name stands; left out, the usual places of each dialect."""
    user_hmac: Annotated[SecretStr, AfterValidator(advising(signing_secret))] = SecretStr("")
    """Demands ``X-User-Hmac`` with each user's id: its HMAC-SHA256 in hexadecimal under this secret.

    ``user`` left out, the id is then read from ``X-User-Id`` alone.
    """
    default_session: str = ""
    """The session of a caller who names none; empty means no session."""
