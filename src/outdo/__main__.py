"""`python -m outdo` is the command `outdo`."""

from outdo.cli import app

app()
