"""How each architecture is written down: its `config.json` and its weights' names."""
