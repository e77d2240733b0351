"""``python -m conformance_tests.mutants [--json FILE] [NAME ...]``."""

from __future__ import annotations

import argparse
import sys

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m conformance_tests.mutants")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try; all without one")
    parser.add_argument("--json", metavar="FILE", help="write what became of each")
    told = parser.parse_args()
    from conformance_tests.mutants.run import main

    sys.exit(main(told.names, told.json))
