"""Entry point of ``python -m hpo``, the same command line as ``hpo``."""

import sys

from hpo.cli import main

sys.exit(main())
