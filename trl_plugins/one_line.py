"""What every command shares at its start: a user's mistake in one line, and no noise that is not the user's."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import yaml

# Deprecations that TRL 1.16 itself sets off in transformers 5.24 at every start; nothing a user could change.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\..*")


def one_line_errors(main: Callable[[], None]) -> None:
    """Run a command; a mistake of the user's becomes one line on stderr and exit code 2."""
    try:
        main()
    except (ValueError, OSError, ImportError, yaml.YAMLError) as error:
        if isinstance(error, OSError) and error.filename is None and not isinstance(error, FileExistsError):
            text = str(error).splitlines()[0]  # transformers reports an unknown model as OSError, in several lines
        else:
            text = " ".join(str(error).split())
        print(f"error: {text}", file=sys.stderr)
        sys.exit(2)
