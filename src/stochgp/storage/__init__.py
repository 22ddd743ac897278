"""Models and checkpoints as files, without pickle."""
