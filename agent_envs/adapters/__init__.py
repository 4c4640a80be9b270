"""Bridges to other frameworks, one file each; every file imports its framework only when it is used."""
