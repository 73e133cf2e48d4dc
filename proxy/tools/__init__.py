"""Memory tools that the proxy offers to the model and carries out itself, within one answer."""

from proxy.tools.dialogue import Carrying, Dialogue, Tools
from proxy.tools.memory_tools import MemoryTools
from proxy.tools.offer import TOOLS, Offer, offer_tools
from proxy.tools.rounds import Rounds

__all__ = ["TOOLS", "Carrying", "Dialogue", "MemoryTools", "Offer", "Rounds", "Tools", "offer_tools"]
