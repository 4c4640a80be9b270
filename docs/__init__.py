"""The documentation and the command that writes it: `python -m docs.build`."""
