"""BEIR folders: corpus, queries and judgments."""
