"""Episodes: what an agent did lately, each of which expires by itself."""
