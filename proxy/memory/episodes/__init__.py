"""What an agent did lately: each episode expires by itself, and its summaries fit into a prompt."""
