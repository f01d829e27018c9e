"""What cdejax's training step is compared with, in PyTorch."""
