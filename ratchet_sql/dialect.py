"""What differs between databases, as answers to questions; nothing else names one.

A statement asks for what it needs ("these rows, as one parameter", "all of that as one value") and the
dialect says how its database spells it. SQLite's answers are here; others join as further subclasses.

Rows travel as one JSON text each way. With the standard library's driver every row that is stepped over
lets go of the interpreter lock, and a thread that computes then keeps it for five milliseconds: fifty
rows by `executemany` took 0.2 s beside one such thread and 2 s beside four, as one JSON parameter one
hundredth of that. Alone, either way costs about the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Dialect, Integer, Table, Text, bindparam, cast, func, literal_column, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.elements import BindParameter, ColumnElement, UnaryExpression
from sqlalchemy.sql.expression import ClauseElement
from sqlalchemy.sql.functions import Function
from sqlalchemy.sql.operators import custom_op
from sqlalchemy.sql.selectable import FromClause, Select

from ratchet.domain.priority import Priority


class SqlDialect:
    """How SQLite spells what the statements need.

    Attributes:
        name: the key of the rendered statements.
        partial_indexes: an index can hold only the rows of a condition, also a unique one.
        row_locks: claimers can pass over each other's rows (``SKIP LOCKED``); without it one writes at a time.
        returning_in_one_step: an update can answer what it changed without a step per row.
    """

    name: Final = "sqlite"
    partial_indexes: Final = True
    row_locks: Final = False
    returning_in_one_step: Final = False

    def compiler(self) -> Dialect:
        """The SQLAlchemy dialect that renders for it, parameters by name."""
        return sqlite.dialect(paramstyle="named")

    def rows(self, parameter: str, names: Sequence[str], *, alias: str = "r") -> Rows:
        """The rows of a JSON array of arrays, given as one parameter; columns by position."""
        return Rows(parameter, names, alias)

    def values(self, parameter: str, *, alias: str = "v") -> tuple[FromClause, ColumnElement[str]]:
        """The texts of a JSON array, given as one parameter: the source and its only column."""
        source = func.json_each(bindparam(parameter, type_=Text())).table_valued("key", "value", name=alias)
        return source, source.c.value

    def row(self, columns: Sequence[ColumnElement[Any]]) -> ColumnElement[str]:
        """These columns as one JSON array."""
        return func.json_array(*map(_readable, columns), type_=Text())

    def collect(self, columns: Sequence[ColumnElement[Any]]) -> ColumnElement[str]:
        """All rows as one JSON array of arrays, in the order in which they come."""
        return func.json_group_array(func.json_array(*map(_readable, columns)), type_=Text())

    def collect_one(self, column: ColumnElement[Any]) -> ColumnElement[str]:
        """All rows of one column as one JSON array."""
        return func.json_group_array(_readable(column), type_=Text())

    def nested(self, value: ColumnElement[str]) -> ColumnElement[str]:
        """JSON text to be kept as JSON inside `row` and `collect`."""
        return func.json(value, type_=Text())

    def contains(self, column: ColumnElement[Any], part: str) -> ColumnElement[bool]:
        """The text contains `part`, literally and with regard to case."""
        return func.instr(column, part, type_=Integer()) > 0

    def insert_or_update(
        self, table: Table, values: Mapping[str, ColumnElement[Any]], *, keep: Sequence[str]
    ) -> ClauseElement:
        """Insert a row; where its primary key is stored already, update all its columns but `keep`."""
        new = sqlite.insert(table).values(dict(values))
        keys = [column.name for column in table.primary_key]
        renewed = {name: new.excluded[name] for name in values if name not in (*keys, *keep)}
        return new.on_conflict_do_update(index_elements=keys, set_=renewed)

    def unindexed(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """The column, in a form that keeps the planner from choosing an index for it."""
        return UnaryExpression(column, operator=custom_op("+"), type_=column.type)

    def priorities(self) -> tuple[FromClause, ColumnElement[int]]:
        """All priorities, highest first, as a source, and its only column."""
        listed = ",".join(str(int(p)) for p in sorted(Priority, reverse=True))
        source = func.json_each(literal_column(f"'[{listed}]'")).table_valued("value", name="p")
        return source, source.c.value


def _readable(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The column as the type that it was declared with.

    SQLite keeps whatever it is given: where another program has put a BLOB, "JSON cannot hold BLOB values",
    and one such row would end every statement that meets it, every claim of every node included.
    """
    if isinstance(column, (BindParameter, Function)):  # ours; and text that `nested` keeps as JSON
        return column
    for kind in (Integer, Text):
        if isinstance(column.type, kind):
            return cast(column, kind)
    return column


class Rows:
    """A source of rows and their columns by name."""

    def __init__(self, parameter: str, names: Sequence[str], alias: str) -> None:
        self.source: FromClause = func.json_each(bindparam(parameter, type_=Text())).table_valued(
            "value", name=alias
        )
        value = self.source.c.value
        self.columns: dict[str, ColumnElement[Any]] = {
            name: func.json_extract(value, literal_column(f"'$[{position}]'"), type_=Integer())
            for position, name in enumerate(names)
        }

    def select(self) -> Select[Any]:
        """All columns under their names."""
        return select(*[column.label(name) for name, column in self.columns.items()])

    def __getitem__(self, name: str) -> ColumnElement[Any]:
        return self.columns[name]


SQLITE: Final = SqlDialect()
