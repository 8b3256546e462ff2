"""Recipes that ship with outdo, as TOML."""
