"""Parquet in and out of the program, by python/lfm2_stage_parquet.py. Skipped without pyarrow; one test more with Hugging Face's datasets.

parquet_test.py LFM2_STAGE SHARDS
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    print("SKIPPED: no pyarrow here (pip install pyarrow)")
    sys.exit(77)
try:
    import datasets
except ImportError:
    datasets = None

PROGRAM, SHARDS = map(os.path.abspath, sys.argv[1:3])
PYTHON = pathlib.Path(__file__).resolve().parents[2] / "python"
GENERATE = [PROGRAM, "--weights", SHARDS, "--device", "cpu", "-q", "--progress", "off", "--max-tokens", "4", "--temperature", "0.9", "--ignore-eos"]


def convert(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "lfm2_stage_parquet", *map(str, arguments)], cwd=PYTHON, capture_output=True, timeout=120, **options)


class Parquet(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def write(self, name, rows, **options):
        path = self.folder / name
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, **options), path, row_group_size=2)
        return path

    def lines(self, *arguments):
        result = convert("to-jsonl", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def refused(self, code, parts, *arguments):
        result = convert(*arguments)
        self.assertEqual((result.returncode, result.stdout), (code, b""), result.stderr)
        message = result.stderr.decode()
        self.assertEqual(message.count("\n"), 1, message)
        for part in parts:
            self.assertIn(part, message)

    def test_rows_are_lines(self):
        chat = [{"role": "user", "content": "Wer?", "name": None}, {"role": "user", "content": "Und?", "name": "a"}]
        first = self.write("a.parquet", [{"messages": chat, "seed": 3, "top_p": None}, {"messages": chat[:1], "seed": None, "top_p": 0.5}])
        second = self.write("b.parquet", [{"messages": chat[:1], "seed": 2 ** 53 + 1}])
        self.assertEqual(self.lines(first, second), [
            {"id": 0, "messages": [{"role": "user", "content": "Wer?"}, {"role": "user", "content": "Und?", "name": "a"}], "seed": 3},
            {"id": 1, "messages": [{"role": "user", "content": "Wer?"}], "top_p": 0.5},
            {"id": 2, "messages": [{"role": "user", "content": "Wer?"}], "seed": 2 ** 53 + 1}])

    def test_columns_are_chosen_and_named(self):
        path = self.write("a.parquet", [{"id": "x", "text": "old", "content": "new", "label": 1}])
        self.assertEqual(self.lines(path), [{"id": "x", "text": "old"}])
        self.assertEqual(self.lines(path, "--column", "text=content", "--column", "id=label"), [{"id": 1, "text": "new"}])
        self.assertIn(b"columns left out: content, label", convert("to-jsonl", path).stderr)

    def test_packed_files_have_the_same_lines(self):
        path = self.write("a.parquet", [{"input_ids": [1, 2 + row]} for row in range(9000)])
        lines = self.lines(path)
        for ending in ("jsonl", "jsonl.gz", "jsonl.zst"):
            packed = self.folder / f"a.{ending}"
            self.assertEqual(convert("to-jsonl", path, "--output", packed).returncode, 0)
            with pyarrow.input_stream(packed) as stream:
                self.assertEqual([json.loads(line) for line in stream.read().splitlines()], lines)
        self.assertEqual(sorted(self.folder.glob("*.partial")), [])

    def test_through_the_program_and_back(self):
        path = self.write("a.parquet", [{"id": f"row {row}", "prompt": text, "answer": row} for row, text in enumerate(["In the", "God said", "And"])])
        answers, table = self.folder / "answers.jsonl", self.folder / "answers.parquet"
        with subprocess.Popen([sys.executable, "-m", "lfm2_stage_parquet", "to-jsonl", path], cwd=PYTHON, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as rows:
            done = subprocess.run([*GENERATE, "--input", "-", "--output", answers], stdin=rows.stdout, capture_output=True, timeout=120)
        self.assertEqual((done.returncode, rows.returncode), (0, 0), done.stderr)
        self.assertEqual(convert("to-parquet", answers, "--output", table).returncode, 0)
        written = [json.loads(line) for line in answers.read_text().splitlines()]
        self.assertEqual([row["id"] for row in written], ["row 0", "row 1", "row 2"])
        self.assertEqual(pyarrow.parquet.read_table(table).to_pylist(), written)

    def test_types_hold_the_values_of_all_lines(self):
        rows = [{"id": 0, "value": 1, "none": None, "list": [1]} for _ in range(5000)]
        rows += [{"id": "a", "value": 2.5, "more": {"x": 1}, "list": [0.5], "empty": {}}]
        rows += [{"id": 3, "value": None, "more": {"y": "z"}, "list": []}] * 5000
        path, table = self.folder / "a.jsonl", self.folder / "a.parquet"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = convert("to-parquet", path, "--output", table)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = pyarrow.parquet.read_table(table).to_pylist()
        self.assertEqual(found[0], {"id": "0", "value": 1.0, "none": None, "list": [1.0], "more": None, "empty": None})
        self.assertEqual(found[5000], {"id": '"a"', "value": 2.5, "none": None, "list": [0.5], "more": {"x": 1, "y": None}, "empty": "{}"})
        self.assertEqual(found[5001], {"id": "3", "value": None, "none": None, "list": [], "more": {"x": None, "y": "z"}, "empty": None})
        self.assertEqual(found[9999]["id"], "3")

    def test_refusals(self):
        path = self.write("a.parquet", [{"content": "x"}])
        self.refused(65, ["no column becomes one of", "found content"], "to-jsonl", path)
        self.refused(65, ["no column 'y'", "expected one of content"], "to-jsonl", path, "--column", "text=y")
        self.refused(64, ["--column words=content", "expected FIELD=COLUMN"], "to-jsonl", path, "--column", "words=content")
        self.refused(64, ["already becomes 'prompt'"], "to-jsonl", path, "--column", "prompt=content", "--column", "target=content")
        self.refused(66, ["nowhere: no such file"], "to-jsonl", "nowhere")
        self.refused(65, ["expected a Parquet file"], "to-jsonl", PYTHON / "lfm2_stage_parquet.py")
        faulty = self.folder / "faulty.jsonl"
        faulty.write_text('{"a": 1}\n[2]\n')
        self.refused(65, ["faulty.jsonl: line 2: expected an object"], "to-parquet", faulty, "--output", self.folder / "o.parquet")
        self.refused(66, ["no such file"], "to-parquet", self.folder / "absent", "--output", self.folder / "o.parquet")
        self.assertEqual(list(self.folder.glob("o.parquet*")), [])

    @unittest.skipUnless(datasets, "no datasets here (pip install datasets)")
    def test_hugging_face_datasets(self):
        """Their own writer of lines gives what the program reads, and their reader takes its answers."""
        rows, answers = self.folder / "rows.jsonl", self.folder / "answers.jsonl"
        datasets.Dataset.from_dict({"id": ["a", "b"], "prompt": ["In the", "And"]}).to_json(str(rows), lines=True)
        done = subprocess.run([*GENERATE, "--input", rows, "--output", answers], capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        back = datasets.Dataset.from_json(str(answers), cache_dir=str(self.folder / "cache"))
        self.assertEqual(back["id"], ["a", "b"])
        self.assertEqual([row["text"] for row in back], [json.loads(line)["text"] for line in answers.read_text().splitlines()])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
