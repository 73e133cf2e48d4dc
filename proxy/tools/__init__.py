"""Memory tools that the proxy offers to the model and carries out itself, within one answer."""

from proxy.tools.dialogue import Carrying, Dialogue, Tools
from proxy.tools.memory_tools import Notebook
from proxy.tools.offer import TOOLS, Offer, offered
from proxy.tools.rounds import Rounds

__all__ = ["TOOLS", "Carrying", "Dialogue", "Notebook", "Offer", "Rounds", "Tools", "offered"]
