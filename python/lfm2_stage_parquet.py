"""Parquet in and out of lfm2_stage (docs/recipes.md). Needs pyarrow.

    python3 -m lfm2_stage_parquet to-jsonl FILE.parquet ... [--column FIELD=COLUMN ...] [--output LINES.jsonl]
    python3 -m lfm2_stage_parquet to-parquet LINES.jsonl --output FILE.parquet

to-jsonl writes each row as a line that `lfm2_stage --input` reads, to stdout or into --output. The ending .gz or .zst packs the file.
A column whose name is a field of such a line becomes this field; --column renames one; stderr names the columns left out. The `id` of
a row without a column `id` is its number over all files, from 0. Nulls are left out.
to-parquet writes each line of `lfm2_stage --output` as a row: a field becomes a column, of the type that holds the values of all lines.
Values of several types, and objects without keys, become JSON text.

Both read and write in batches, so memory does not grow with the files. A file is complete once it has its name.
"""

import argparse
import contextlib
import json
import os
import sys

try:
    import pyarrow
    import pyarrow.parquet
except ImportError as error:
    sys.exit(f"lfm2_stage_parquet: {error}: expected pyarrow, as in pip install pyarrow")

# Fields of a line of `--input`, as docs/text.md names them.
FIELDS = {"id", "input_ids", "text", "prompt", "messages", "tools", "chat_template_kwargs", "target", "max_tokens", "max_completion_tokens",
          "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "logprobs", "min_tokens", "repetition_penalty",
          "presence_penalty", "frequency_penalty", "logit_bias", "add_special_tokens", "response_format", "structured_outputs", "draft",
          "truncate_prompt_tokens", "continue_final_message", "add_generation_prompt", "custom_id", "method", "url", "body"}
SOURCES = {"input_ids", "text", "prompt", "messages", "body"}  # a line has one of them
BATCH = 4096  # rows


class Refusal(Exception):
    """What a user can mend: main prints its one line and ends with its code, of sysexits."""

    def __init__(self, code, message):
        super().__init__(f"lfm2_stage_parquet: {message}")
        self.code = code


@contextlib.contextmanager
def complete(path):
    """The name to write `path` under: it gets its own name at the end, and is removed where writing fails."""
    partial = f"{path}.partial"
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise


def open_parquet(path):
    try:
        return pyarrow.parquet.ParquetFile(path)
    except FileNotFoundError:
        raise Refusal(66, f"{path}: no such file") from None
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise Refusal(65, f"{path}: expected a Parquet file: {error}") from None


def chosen_columns(names, renamed, path):
    """{column: field} of the columns that become fields of a line."""
    columns = {name: name for name in names if name in FIELDS and name not in renamed.values() and name not in renamed}
    for field, column in renamed.items():
        if column not in names:
            raise Refusal(65, f"{path}: no column {column!r}: expected one of {', '.join(names)}")
        if column in columns:
            raise Refusal(64, f"--column {field}={column}: this column already becomes {columns[column]!r}: expected another one")
        columns[column] = field
    if not SOURCES & set(columns.values()):
        raise Refusal(65, f"{path}: no column becomes one of {', '.join(sorted(SOURCES))}: found {', '.join(names)}; "
                          "name one with --column, as in --column text=content")
    left_out = [name for name in names if name not in columns]
    if left_out:
        print(f"lfm2_stage_parquet: {path}: columns left out: {', '.join(left_out)}", file=sys.stderr)
    return columns


def without_nulls(value):
    """Parquet gives all keys that any row has: those without a value were not there."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def lines_of(paths, renamed):
    number = 0
    for path in paths:
        file = open_parquet(path)
        columns = chosen_columns(file.schema_arrow.names, renamed, path)
        for batch in file.iter_batches(BATCH, columns=list(columns)):
            for row in batch.to_pylist():
                line = {columns[name]: without_nulls(value) for name, value in row.items() if value is not None}
                if "custom_id" not in line:
                    line = {"id": line.pop("id", number), **line}
                try:
                    yield json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"
                except (TypeError, ValueError) as error:
                    raise Refusal(65, f"{path}: row {number}: {error}: expected texts, numbers, lists and structs") from None
                number += 1


def to_jsonl(args):
    renamed = {}
    for pair in args.column:
        field, equals, column = pair.partition("=")
        if not equals or field not in FIELDS:
            raise Refusal(64, f"--column {pair}: expected FIELD=COLUMN with a field of {', '.join(sorted(FIELDS))}")
        renamed[field] = column
    if args.output is None:
        for line in lines_of(args.files, renamed):
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return
    packing = {".gz": "gzip", ".zst": "zstd"}.get(os.path.splitext(args.output)[1])
    with complete(args.output) as partial, pyarrow.output_stream(partial, compression=packing) as stream:
        for line in lines_of(args.files, renamed):
            stream.write(line)


def rows_of(path):
    """Lists of at most BATCH lines as dictionaries."""
    try:
        with open(path, "rb") as file:
            rows = []
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("expected an object")
                except ValueError as error:
                    raise Refusal(65, f"{path}: line {number}: {error}") from None
                rows.append(row)
                if len(rows) == BATCH:
                    yield rows
                    rows = []
            if rows:
                yield rows
    except FileNotFoundError:
        raise Refusal(66, f"{path}: no such file") from None


def has_empty_struct(type_):
    if pyarrow.types.is_struct(type_):
        return type_.num_fields == 0 or any(has_empty_struct(field.type) for field in type_.fields)
    return pyarrow.types.is_list(type_) and has_empty_struct(type_.value_type)


class Types:
    """The type of each column: one that holds the values of all rows, else JSON text."""

    def __init__(self):
        self.types = {}

    def add(self, rows):
        for name in dict.fromkeys(key for row in rows for key in row):
            known = self.types.get(name, pyarrow.null())
            if known is None:
                continue
            try:
                found = pyarrow.array([row.get(name) for row in rows]).type
                one, other = (pyarrow.schema([("", each)]) for each in (known, found))
                self.types[name] = pyarrow.unify_schemas([one, other], promote_options="permissive").field(0).type
            except (pyarrow.ArrowException, OverflowError):
                self.types[name] = None

    def complete(self):
        """Objects without keys become text, as Parquet has none."""
        self.types = {name: None if each is not None and has_empty_struct(each) else each for name, each in self.types.items()}

    def schema(self):
        """A column of nulls alone is of texts, since other readers of Parquet know no type without values."""
        return pyarrow.schema([(name, pyarrow.string() if each in (None, pyarrow.null()) else each) for name, each in self.types.items()])

    def table(self, rows):
        def column(name, each):
            values = [row.get(name) for row in rows]
            if each is None:
                values = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
            return pyarrow.array(values, self.schema().field(name).type)
        return pyarrow.table([column(*each) for each in self.types.items()], schema=self.schema())


def to_parquet(args):
    if args.file == "-":
        raise Refusal(64, "to-parquet reads its lines twice, for the types and for the rows: expected a file rather than -")
    types = Types()
    for rows in rows_of(args.file):
        types.add(rows)
    types.complete()
    if not types.types:
        raise Refusal(65, f"{args.file}: no lines")
    with complete(args.output) as partial, pyarrow.parquet.ParquetWriter(partial, types.schema(), compression="zstd") as writer:
        for rows in rows_of(args.file):
            writer.write_table(types.table(rows))


def main():
    parser = argparse.ArgumentParser(prog="lfm2_stage_parquet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="to-jsonl|to-parquet")
    reading = commands.add_parser("to-jsonl", help="rows as lines for lfm2_stage --input")
    reading.add_argument("files", nargs="+", metavar="FILE.parquet")
    reading.add_argument("--column", action="append", default=[], metavar="FIELD=COLUMN", help="the column that becomes this field")
    reading.add_argument("--output", help="LINES.jsonl, LINES.jsonl.gz or LINES.jsonl.zst; default: stdout")
    reading.set_defaults(command=to_jsonl)
    writing = commands.add_parser("to-parquet", help="lines of lfm2_stage --output as rows")
    writing.add_argument("file", metavar="LINES.jsonl")
    writing.add_argument("--output", required=True, metavar="FILE.parquet")
    writing.set_defaults(command=to_parquet)
    args = parser.parse_args()
    try:
        args.command(args)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return refusal.code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains once more at its end
        return 74
    except (OSError, pyarrow.ArrowException) as error:
        print(f"lfm2_stage_parquet: {error}", file=sys.stderr)
        return 74 if isinstance(error, OSError) else 65
    return 0


if __name__ == "__main__":
    sys.exit(main())
