"""Encoders that turn data frames, files and molecules into numbers, with stored rules."""
