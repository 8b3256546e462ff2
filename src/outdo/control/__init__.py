"""Policies that act step by step in Gymnasium environments."""
