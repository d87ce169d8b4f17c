"""Grouped products of experts in compiled models: which kernel serves how many tokens, and putting it into graphs."""
