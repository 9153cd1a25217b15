"""`python -m peeklock` is `peeklock`."""

from peeklock.cli.main import main

main()
