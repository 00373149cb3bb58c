"""`python -m kzconsumer` is the command `kzconsumer`."""

from kzconsumer.cli.main import main

raise SystemExit(main())
