"""Files become settings: scripts by their syntax trees, shell lines, YAML, JSON, folders; nothing is executed."""
