"""Write the named tuples of ``_native.pyi`` as lines ``RECORD(variable, "Name", "fields")`` for records.h.

The stub is the one list of their fields: it also has their types and what they mean.
"""

import ast
import re
import sys
from pathlib import Path


def line(record: ast.ClassDef) -> str:
    variable = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", record.name).lower()
    fields = [
        each.target.id for each in record.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    return f'RECORD({variable}, "{record.name}", "{" ".join(fields)}")\n'


def main(stub: str, target: str) -> None:
    tree = ast.parse(Path(stub).read_text(encoding="utf-8"))
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    records = [each for each in classes if any(ast.unparse(base) == "NamedTuple" for base in each.bases)]
    Path(target).write_text("".join(map(line, records)), encoding="utf-8")


main(*sys.argv[1:])
