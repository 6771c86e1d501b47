#!/usr/bin/env python3
"""tokenize_cli.py PROGRAM TOKENIZER_JSON: the command tokenize of weights-tools, line by line."""
import os, pathlib, subprocess, sys, tempfile, unittest

PROGRAM, TOKENIZER = sys.argv[1:3]
TIMEOUT = 120


def run(*options, data=b"", tokenizer=TOKENIZER, **more):
    return subprocess.run([PROGRAM, "tokenize", tokenizer, *options], input=data, capture_output=True, timeout=TIMEOUT, **more)


class TokenizeTest(unittest.TestCase):
    def lines(self, *options, data):
        done = run(*options, data=data)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout

    def test_text_comes_back(self):
        text = "Hello, my name is\n\npythonic\r\n<|im_start|>user 你好 🌍\n".encode() + bytes(range(256)).replace(b"\n", b"") + b"\nno end"
        ids = self.lines("--no-special", data=text)
        self.assertEqual(self.lines("--decode", data=ids), text.replace(b"\r\n", b"\n") + b"\n")
        self.assertEqual(ids.count(b"\n"), 6)

    def test_what_is_no_text_of_a_line(self):
        plain = self.lines(data=b"a\nb\n")
        self.assertEqual(self.lines(data=b"\xef\xbb\xbfa\r\nb\r\n"), plain)
        self.assertNotEqual(self.lines(data=b"a\n\xef\xbb\xbfb\n"), plain)

    def test_special_tokens(self):
        self.assertEqual(self.lines(data=b"\n"), b"[1]\n")
        self.assertEqual(self.lines("--no-special", data=b"\n"), b"[]\n")
        self.assertEqual(self.lines("--decode", data=b"[1, 3]\n"), b"<|startoftext|><|im_start|>\n")
        self.assertEqual(self.lines("--decode", "--no-special", data=b"[1, 3]\n"), b"\n")

    def test_json_strings_may_have_line_breaks(self):
        text = '"a\\nb"\n"\\u00e9"\n'.encode()
        ids = self.lines("--json", "--no-special", data=text)
        self.assertEqual(ids.count(b"\n"), 2)
        self.assertEqual(self.lines("--json", "--decode", data=ids), '"a\\nb"\n"é"\n'.encode())
        broken = run("--decode", data=b"[5]\n" + ids)
        self.assertEqual(broken.returncode, 65)
        self.assertIn(b"stdin: line 2: the text of these ids has a line break, which needs --json", broken.stderr)
        self.assertEqual(broken.stdout.count(b"\n"), 1)

    def test_bad_lines_have_their_number(self):
        for line, message in ((b"[1", b"not valid JSON"), (b"7", b"expected a list of ids"), (b"[-1]", b'"id" is -1'), (b'["a"]', b'"id" is "a"'),
                              (b"[3000000000]", b'"id" is 3000000000'), (b"", b"not valid JSON")):
            for before in (0, 3, 100_000):
                done = run("--decode", data=b"[5]\n" * before + line + b"\n[5]\n")
                self.assertEqual(done.returncode, 65)
                self.assertEqual(done.stdout.count(b"\n"), before)
                self.assertRegex(done.stderr, b"^weights-tools: stdin: line %d: [^\n]*%s[^\n]*\n$" % (before + 1, message))
        self.assertEqual(run("--json", data=b'"a"\n[1]\n').stderr, b"weights-tools: stdin: line 2: [1], expected a string\n")

    def test_ids_without_text_give_nothing(self):
        self.assertEqual(self.lines("--decode", data=b"[2147483647, 60000]\n"), b"\n")

    def test_folders_and_missing_files(self):
        with tempfile.TemporaryDirectory() as folder:
            missing = run(tokenizer=folder)
            self.assertEqual(missing.returncode, 66)
            self.assertIn(b"tokenizer.json", missing.stderr)
            (pathlib.Path(folder) / "tokenizer.json").write_bytes(pathlib.Path(TOKENIZER).read_bytes())
            self.assertEqual(run(tokenizer=folder, data=b"\n").stdout, b"[1]\n")
            (pathlib.Path(folder) / "tokenizer.json").write_bytes(b"{}")
            self.assertEqual(run(tokenizer=folder).returncode, 65)

    def test_conversations(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "tokenizer.json").write_bytes(pathlib.Path(TOKENIZER).read_bytes())
            (pathlib.Path(folder) / "chat_template.jinja").write_text(
                "{{ word }}{% for m in messages %}<{{ m.content }}>{% endfor %}{% if add_generation_prompt %}answer:{% endif %}")
            said = b'{"messages": [{"role": "user", "content": "hi"}]'
            for more, text in ((b"", b"<hi>answer:"), (b', "chat_template_kwargs": {"word": "so"}', b"so<hi>answer:"),
                               (b', "chat_template_kwargs": {"add_generation_prompt": false}', b"<hi>")):
                self.assertEqual(run("--chat", "--render", data=said + more + b"}\n", tokenizer=folder).stdout, b'"' + text + b'"\n')
            for more, message in ((b', "word": 1', b'unknown key "word", expected messages, tools and chat_template_kwargs'),
                                  (b', "chat_template_kwargs": 1', b"the template's variables are not a JSON object")):
                done = run("--chat", data=said + more + b"}\n", tokenizer=folder)
                self.assertEqual(done.returncode, 65)
                self.assertIn(message, done.stderr)

    def test_threads_and_blocks_change_nothing(self):
        lines = b"".join(b"line %d: %s\n" % (i, b"word " * (i % 50)) for i in range(60_000))
        one = self.lines("--threads", "1", data=lines)
        self.assertEqual(one, self.lines("--threads", "4", data=lines))
        self.assertEqual(self.lines("--decode", "--no-special", data=one), lines)

    def test_lines_are_answered_as_they_come(self):
        with subprocess.Popen([PROGRAM, "tokenize", TOKENIZER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            for _ in range(3):
                process.stdin.write(b"\n")
                process.stdin.flush()
                self.assertEqual(process.stdout.readline(), b"[1]\n")
            process.stdin.close()
            self.assertEqual(process.wait(TIMEOUT), 0)

    def test_memory_does_not_grow_with_the_input(self):
        used = []
        for size in (1, 6):
            with tempfile.TemporaryFile() as file:
                for _ in range(size * 16):
                    file.write(b"The same few words in every line of this file.\n" * (1 << 16 >> 2))
                file.seek(0)
                process = subprocess.Popen([PROGRAM, "tokenize", TOKENIZER, "--threads", "2"], stdin=file, stdout=subprocess.DEVNULL)
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = status
                self.assertEqual(status, 0)
                used.append(usage.ru_maxrss)
        self.assertLess(used[1], 1.5 * used[0] + 20_000)  # KB

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, "tokenize", TOKENIZER], input=b"a\n", stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stderr), (74, b"weights-tools: stdout cannot be written\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
