"""That a user's id comes from whoever holds the secret, and was not made up on the way."""

import hashlib
import hmac
from typing import Final

from proxy.errors import Unauthorized

HEADER: Final = "x-user-hmac"
_ADVICE: Final = (
    "Send X-User-Hmac with the user's id: its HMAC-SHA256 in hexadecimal, under 'identity.user_hmac'."
)


class Proof:
    """Checks ids against their HMAC-SHA256 in hexadecimal; it shows its secret to nobody."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def check(self, user: str | None, given: str | None) -> None:
        """Raises Unauthorized for an id without its HMAC; who names no user needs none."""
        if user is None:
            return
        expected = hmac.new(self._secret, user.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        shown = (given or "").strip().lower().encode("latin-1", "replace")
        if not hmac.compare_digest(expected.encode(), shown):
            raise Unauthorized(_ADVICE, code="invalid_user_hmac")
