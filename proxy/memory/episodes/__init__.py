"""Episodes: recent interactions of an agent, each of which expires by itself."""
