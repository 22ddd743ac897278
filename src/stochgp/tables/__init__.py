"""Encoders from data frames, files and molecules to numbers, with rules that are saved."""
