"""Tools that the proxy offers to the model and carries out itself, within one answer."""

from proxy.tools.kit import Carrying, Done
from proxy.tools.offer import Offer, offered
from proxy.tools.rounds import Rounds

__all__ = ["Carrying", "Done", "Offer", "Rounds", "offered"]
