"""What is kept on disk: artefacts, their digests, and writing whole or not at all."""
