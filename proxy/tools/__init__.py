"""Tools that the proxy offers to the model and carries out itself, within one answer."""

from proxy.tools.kit import Carrying
from proxy.tools.notebook import Notebook
from proxy.tools.offer import TOOLS, Offer, offered
from proxy.tools.rounds import Rounds, Tools

__all__ = ["TOOLS", "Carrying", "Notebook", "Offer", "Rounds", "Tools", "offered"]
