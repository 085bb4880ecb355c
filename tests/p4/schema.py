#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""schema.py BF-RT.JSON...: what switchmld needs of a Tofino program's schema, as src/dataplane/test_schema.h has it.

A line for each key, action and data field: table, what it is (key, action, data, or the action it belongs to), name,
width in bytes, and what is special of it.
"""
import json
import sys

TABLES = ("pipe.host", "pipe.source", "pipe.aggregator", "pipe.listener", "pipe.member", "pipe.window", "pipe.l2",
          "pipe.replica", "pipe.cells", "pipe.cursors",
          "pipe.verdicts", "pipe.Ingress.aggregate.sum.lane_0_0.values", "pipe.Ingress.aggregate.sum.lane_0_31.values",
          "$pre.mgid", "$pre.node", "$pre.prune", "$PORT")
IGNORED = ("$PORT", "data") # speeds and the like: only which ports there are is asked for
WIDTHS = {"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1}


def field_of(field):
    kind = field["type"]
    width = (kind["width"] + 7) // 8 if kind["type"] == "bytes" else WIDTHS[kind["type"]]
    return f"{field['name']} {width}{' list' if field.get('repeated') else ''}"


def table_of(table):
    """The lines of one table."""
    name = table["name"]
    yield name
    for key in table["key"]:
        yield f"{name} key {field_of(key)}{' ternary' if key['match_type'] == 'Ternary' else ''}"
    for action in table.get("action_specs", ()):
        yield f"{name} action {action['name']}"
        for data in action["data"]:
            yield f"{name} {action['name']} {field_of(data)}"
    for data in table["data"]:
        if (name, "data") != IGNORED:
            yield f"{name} data {field_of(data['singleton'])}{'' if data['mandatory'] else ' optional'}"


def excerpt(paths):
    tables = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            tables.update({table["name"]: table for table in json.load(file)["tables"]})
    return [line for name in TABLES if name in tables for line in table_of(tables[name])]


def recorded(path):
    """The lines of the header."""
    with open(path, encoding="utf-8") as file:
        return [line.strip()[1:-2] for line in file if line.startswith('  "')]


if __name__ == "__main__":
    for text in excerpt(sys.argv[1:]):
        print(f'  "{text}",')
