"""Write an archive of Spark's loaded classes, with which Spark starts faster in tests.

`python tests/spark/archive_classes.py FILE`. Most of what a Spark of a few seconds does is to load classes: with the
file, it takes three quarters of the CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(_ROOT / "src")]
from peeklock.spark.classes import make_archive  # noqa: E402
from peeklock.spark.session import SMALL_JAVA, missing  # noqa: E402


def main(file: str) -> int:
    wanting = missing()
    if wanting is not None:
        print(f"Left out: an archive of Spark's classes; {wanting}", file=sys.stderr)
        return 0
    make_archive(Path(file).absolute(), SMALL_JAVA)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
