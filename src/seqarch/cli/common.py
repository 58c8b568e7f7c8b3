"""What every step's command line shares: spec, planned code, expected inputs, errors, exit codes."""

import argparse
import errno
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seqarch.errors import SeqarchError
from seqarch.provenance import check_inputs, entry_modules, fingerprint, verify_code

EXIT_INTERRUPTED = 143  # 128 + SIGTERM: stopped by a signal in a resumable state


def step_parser(step: str, description: str) -> argparse.ArgumentParser:
    """A parser with the three options of every step: `--spec`, `--code`, `--expects`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m seqarch.cli.{step}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--spec", required=True, type=_json, help="the step's options as JSON, or @file with them"
    )
    parser.add_argument(
        "--code", help="the code fingerprint planned by the workflow; refuses if the code differs"
    )
    parser.add_argument(
        "--expects", type=_json, default={}, help="JSON: input path -> recipe that must have made it"
    )
    return parser


def _json(text: str) -> Any:
    try:
        return json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except (OSError, json.JSONDecodeError) as error:
        raise argparse.ArgumentTypeError(f"expected JSON or @file with JSON: {error}") from error


def run_step(
    step: str,
    parser: argparse.ArgumentParser,
    function: Callable[[argparse.Namespace], None],
    argv: Sequence[str] | None = None,
    mixers: Callable[[Any], Iterable[str]] = lambda spec: (),
    modules: Callable[[Any], Iterable[str]] = lambda spec: (),
    verifies: bool = False,
) -> int:
    """Parse, verify code and inputs, call `function(args)`, verify the code again; the process's exit code.

    When `function` runs, `args.code` is set, and `args.verify()` verifies the code. A SeqarchError, or a full
    disk, becomes one message on stderr. SIGTERM is turned into SystemExit(143) so that `finally` and `with`
    clean up; training installs its own handler.

    Args:
        mixers: names the mixers that the step loads lazily, from its spec.
        modules: names other modules that the step loads lazily, from its spec.
        verifies: `function` calls `args.verify` itself, before it gives up the state it could go on from.
    """
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_INTERRUPTED))
    try:
        entry = entry_modules(step, mixers(args.spec), modules(args.spec))
        if args.code:
            verify_code(entry, args.code)
        else:
            args.code = fingerprint(entry)
        args.verify = partial(verify_code, entry, args.code)
        check_inputs(args.expects)
        function(args)
        if not verifies:
            args.verify()
    except SeqarchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"error: {error}: free some space; nothing half-written was kept", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0
