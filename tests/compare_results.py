"""Compare the rows of two folders of `smadmm reproduce all`: python tests/compare_results.py OLD NEW

For each experiment the number of rows, the largest relative difference of every column apart from times, and what is
only in one of the two. Ends with 1 if the rows do not correspond or a number differs by more than 1e-6.
"""

import json
import math
import re
import sys
from pathlib import Path

TIMES = re.compile(r"seconds|cpu|(^|_)ms$")
TOLERANCE = 1e-6


def rows_of(folder):
    return {path.parent.name: json.loads(path.read_text())["rows"] for path in sorted(folder.glob("*/results.json"))}


def difference(old, new):
    """Relative; infinite where one is a number and the other is not, or other text."""
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return 0.0 if old == new else abs(old - new) / max(abs(old), abs(new))
    return 0.0 if old == new else math.inf


def compare(name, old, new):
    """Print what differs between two lists of rows; whether all is the same."""
    print(f"{name}: {len(old)} rows, then {len(new)}")
    columns = [list(dict.fromkeys(column for row in rows for column in row)) for rows in (old, new)]
    for which, column in [("old", c) for c in columns[0] if c not in columns[1]] + [
        ("new", c) for c in columns[1] if c not in columns[0]
    ]:
        print(f"  the column {column} is only in the {which}")
    same = len(old) == len(new) and set(columns[0]) == set(columns[1])
    equal = []
    for column in (c for c in columns[0] if c in columns[1] and not TIMES.search(c)):
        gaps = [difference(a.get(column), b.get(column)) for a, b in zip(old, new)]
        largest = max(gaps, default=0.0)
        if largest > 0:
            row = gaps.index(largest)
            where = f"row {row}: {old[row].get(column)!r}, then {new[row].get(column)!r}"
            print(f"  {column}: {sum(gap > 0 for gap in gaps)} rows differ, by up to {largest:.2g} ({where})")
        else:
            equal.append(column)
        same &= largest <= TOLERANCE
    print(f"  equal: {', '.join(equal)}")
    return same


def main(old_folder, new_folder):
    old, new = rows_of(Path(old_folder)), rows_of(Path(new_folder))
    for name in sorted(set(old) ^ set(new)):
        print(f"{name} is only in {old_folder if name in old else new_folder}")
    same = [compare(name, old[name], new[name]) for name in old if name in new]
    return 0 if set(old) == set(new) and all(same) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
