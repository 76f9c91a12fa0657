#!/usr/bin/env python3
"""Names source files over 500 lines: split by concern before it hurts. A warning, never a failure."""
import pathlib
import subprocess

LIMIT = 500
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc", ".py"}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    for name in sorted(filter(None, listed.decode().split("\0"))):
        path = root / name
        if path.suffix in SUFFIXES and path.is_file():
            lines = path.read_bytes().count(b"\n")
            if lines > LIMIT:
                print(f"warning: {name} has {lines} lines, over {LIMIT}")


if __name__ == "__main__":
    main()
