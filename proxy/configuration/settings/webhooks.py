from pydantic import SecretStr

from proxy.configuration.part import Part


class AgoraWebhook(Part):
    """Notices of Agora's engine: who joined and left, and what was said."""

    secret: SecretStr = SecretStr("")
    """What Agora signs its notices with; empty takes none."""
    tenant: str = ""
    """Whose calls they tell of, as named in ``keys``; empty is the only name there."""


class Webhooks(Part):
    """What engines tell by themselves."""

    agora: AgoraWebhook = AgoraWebhook()
    """``POST /webhooks/agora``."""
