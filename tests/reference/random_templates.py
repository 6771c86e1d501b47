#!/usr/bin/env python3
"""random_templates.py RENDER_CHAT [--templates N] [--seed S] [--verbose]: random templates of everything that the interpreter knows, rendered by
Python's Jinja and by RENDER_CHAT (a program of the tests). Needs only jinja2.

A text that differs, or a text where Python refuses, is a defect: the script ends with 1 and shows the template. What only RENDER_CHAT refuses
is counted by reason: it must say that something is not supported.
"""
import argparse, collections, json, random, re, resource, sys, warnings

try:
    from chat_environment import NOW, environment, render
except ImportError as error:
    print(f"skipped: {error} (package python3-jinja2)")
    sys.exit(77)
from render_chat import Renderer

VARIABLES = {"s": "Hello, wörld", "t": "  a.b \n c ", "e": "", "n": 7, "m": -3, "z": 0, "f": 2.5, "g": 1e-7, "big": 2 ** 63, "yes": True, "no": False, "nil": None,
             "l": [3, 1, 2], "w": ["b", "a", "C", "a"], "mixed": [1, "1", 1.0, None, True, [1], {"a": 1}], "d": {"b": 1, "a": [1, 2], "keys": "k", "x y": None},
             "o": {}, "p": [], "r": [{"k": "x", "v": 1}, {"k": "y", "v": 2}, {"k": "x"}], "u": "Straße ΣΑΣ \u200b é",
             "deep": {"a": {"b": [{"c": "end"}]}}, "q": "it's \"q\" <b>&", "digits": "42", "real": " 1.5e3 "}
FILTERS = ["trim", "upper", "lower", "capitalize", "title", "length", "count", "first", "last", "list", "string", "int", "tojson", "sort", "unique", "items", "dictsort",
           "min", "join", "safe", "default", "d", "default('x')", "default('y', true)", "join(', ')", "replace('a', 'bb')", "replace('l', 'L')", "indent", "indent(2)",
           "indent(width=3, first=true)", "indent('> ', true)", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)",
           "tojson(separators=(',', ':'))", "tojson(indent=0)", "map('upper')", "map(attribute='k')", "map('length')", "map('string')", "map('default', 'q')", "reject",
           "reject('equalto', 1)", "selectattr('v')", "selectattr('k', 'equalto', 'x')", "rejectattr('v', 'defined')", "selectattr('v', 'in', l)", "sort(attribute='k')",
           "int(-1)", "list | length", "format(n, s)", "from_json"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "true", "false", "in l", "in 'abc'", "equalto 1", "eq('a')", "== 1"]
METHODS = ["strip()", "lstrip()", "rstrip()", "strip('H ')", "split('l')", "split(',', 1)", "split('.', maxsplit=1)", "startswith('H')", "endswith('d')", "replace('l', '_')",
           "upper()", "lower()", "capitalize()", "title()", "find('l')", "format(n, s)", "items()", "keys()", "get('a')", "get('zz')", "get('zz', 5)", "append(1)"]
ATTRIBUTES = ["a", "b", "k", "keys", "items", "zz", "a.b", "0", "x", "real", "update"]
SUBSCRIPTS = ["0", "-1", "1", "99", "'a'", "'keys'", "'zz'", "'x y'", "true", "none", "n", "s", "1:", ":-1", "::-1", "-3:-1", "1:99", "5:1", "m:", "'a':", ":0", ":", "none:2"]
LITERALS = ["0", "1", "2", "42", "-1", "'a'", '"b\\n"', "'é'", "'\\u00e9\\x41'", "''", "true", "none", "False", "[]", "{}", "()", "(1,)", "[1, 'a', none]", "{'a': 1, 2: 'b'}",
            "[[1, 2], [3]]", "('x', 'y')", "range(3)", "range(5, 0, -2)", "dict(a=1, b=s)", "'%s-%s' | format(s, n)", "'{}:{}'.format(n, l)",
            "strftime_now('%Y-%m-%d %H:%M %b %B %A')", "'a' 'b'"]
BINARY = ["+", "-", "*", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
# What is refused by name, one of which is in each hundredth template or so.
REFUSED = ["n / 2", "n // 2", "n ** 2", "+n", "n | abs", "l | sum", "l | reverse", "n is odd", "s is upper", "s.split()", "s.center(9)", "s.count('l')", "d.values()",
           "l.index(1)", "1.5", "0x1F", "1_000", "'%s' % n", "s[::2]", "cycler(1, 2)", "s.format(a=1)", "l | join(',', attribute='k')", "s.startswith(('H', 'x'))"]
SPACES = ["", " ", "\n", "  ", "\n\n", " \n  ", "x", "text\n", "  y\n", "\t"]


class Generator:
    def __init__(self, random_):
        self.random, self.pick = random_, random_.choice
        self.names = list(VARIABLES) + ["missing", "x", "i", "ns", "caller"]
        self.in_loop = False

    def expression(self, depth):
        if depth <= 0 or self.random.random() < 0.15:
            return self.pick(LITERALS) if self.random.random() < 0.35 else self.pick(self.names)
        inner = lambda: self.expression(depth - 1)
        wrapped = lambda: f"({inner()})" if self.random.random() < 0.5 else self.expression(0)
        if self.random.random() < 0.002:
            return self.pick(REFUSED)
        kind = self.random.randrange(16)
        if kind < 4:
            return f"{wrapped()} | {self.pick(FILTERS)}"
        if kind < 6:
            return f"{wrapped()} {self.pick(BINARY)} {wrapped()}"
        if kind == 6:
            return f"{inner()} {self.pick(BINARY)} {inner()}"
        if kind == 7:
            return f"{wrapped()}.{self.pick(METHODS)}"
        if kind == 8:
            return f"{wrapped()}[{self.pick(SUBSCRIPTS)}]"
        if kind == 9:
            return f"{wrapped()}.{self.pick(ATTRIBUTES)}"
        if kind == 10:
            return f"{wrapped()} is {self.pick(['', 'not '])}{self.pick(TESTS)}"
        if kind == 11:
            return f"{inner()} if {wrapped()}" + (f" else {inner()}" if self.random.random() < 0.7 else "")
        if kind == 12:
            return f"{self.pick(['not ', '-'])}{wrapped()}"
        if kind == 13:
            return f"[{inner()}, {inner()}]"
        if kind == 14:
            return f"{{{self.pick(['1', chr(39) + 'a' + chr(39), 's', 'n'])}: {inner()}}}"
        return f"{wrapped()} < {wrapped()} {self.pick(['<', '==', '>='])} {wrapped()}"

    def tag(self, inside):
        return f"{{%{self.pick(['', '', '', '-', '+'])} {inside} {self.pick(['', '', '', '-', '+'])}%}}"

    def output(self, depth):
        return f"{{{{{self.pick(['', '', '-'])} {self.expression(depth)} {self.pick(['', '', '-'])}}}}}"

    def body(self, depth):
        return "".join(self.pick(SPACES) + self.statement(depth) for _ in range(self.random.randint(0, 3))) + self.pick(SPACES)

    def loop(self, depth):
        target, source = self.pick([("i", None), ("i", None), ("x", None), ("i, x", "d.items()"), ("i, x", "[[1, 2], [3, 4]]"), ("(i, x)", "d | dictsort")])
        before, self.in_loop = self.in_loop, True
        condition = f" if {self.expression(1)}" if self.random.random() < 0.25 else ""
        inside = self.body(depth - 1)
        if self.random.random() < 0.5:
            inside = "{{ loop." + self.pick(["index", "index0", "first", "last", "length", "previtem", "nextitem", "zz"]) + " }}" + inside
        self.in_loop = before
        otherwise = self.tag("else") + self.body(depth - 1) if self.random.random() < 0.2 else ""
        return self.tag(f"for {target} in {source or self.expression(1)}{condition}") + inside + otherwise + self.tag("endfor")

    def statement(self, depth):
        kind = self.random.randrange(18) if depth > 0 else self.random.randrange(5)
        if kind < 4:
            return self.output(2)
        if kind == 4:
            return self.pick(["{# a comment #}", "{#- x -#}", "{# y +#}", "{% raw %} {{ s }} {% endraw %}", "{%- raw -%}\n {% if %} {%- endraw %}\n", "{{ 1 }", "{", "%}", "}}"])
        if kind < 8:
            return self.tag(f"set {self.pick(['x', 'i', 's', 'ns.a', 'x, i'])} = {self.expression(2)}")
        if kind == 8:
            return self.tag("set ns = namespace(a=1, b=s)")
        if kind < 11:
            middle = self.tag(f"elif {self.expression(1)}") + self.body(depth - 1) if self.random.random() < 0.3 else ""
            otherwise = self.tag("else") + self.body(depth - 1) if self.random.random() < 0.5 else ""
            return self.tag(f"if {self.expression(2)}") + self.body(depth - 1) + middle + otherwise + self.tag("endif")
        if kind < 14:
            return self.loop(depth)
        if kind == 14:
            parameters = self.pick(["", "x", "x, i=2", "x=s, i=x", "s"])
            before, self.in_loop = self.in_loop, False
            inside = self.body(depth - 1) + self.pick(["", "{{ caller() }}", "{{ x }}", "{{ caller is defined }}"])
            self.in_loop = before
            call = self.pick(["m()", "m(1)", "m(1, 2)", "m(1, 2, 3)", "m(x=s)", "m(i=n, x=1)", "m(zz=1)", "m(*l)", "m(1, *p)", "m(s) | length"])
            called = f"{{% call {call} %}}{self.body(depth - 1)}{{% endcall %}}" if self.random.random() < 0.3 and "|" not in call else f"{{{{ {call} }}}}"
            return self.tag(f"macro m({parameters})") + inside + self.tag("endmacro") + called
        if kind == 15:
            return f"{{{{ {self.expression(3)} }}}}"
        if kind == 16:
            filters = self.pick(["upper", "trim", "replace('a', 'b')", "indent(2, true) | upper", "length"])
            before, self.in_loop = self.in_loop, False
            inside = self.body(depth - 1)
            self.in_loop = before
            if self.random.random() < 0.5:
                return self.tag(f"filter {filters}") + inside + self.tag("endfilter")
            return self.tag(self.pick(["set x", "set ns.a"])) + inside + self.tag("endset") + "{{ x }}"
        if self.in_loop and self.random.random() < 0.7:
            return self.tag(f"if {self.expression(1)}") + self.tag(self.pick(["break", "continue"])) + self.tag("endif")
        before, self.in_loop = self.in_loop, False
        inside = self.body(depth - 1)
        self.in_loop = before
        return self.tag("generation") + inside + self.tag("endgeneration")

    def template(self):
        return self.body(3) + self.pick(["", "\n", "\n\n", "\r\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--templates", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="counts what only RENDER_CHAT refuses by reason")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # 'a' * 10 ** 18 is to fail in Python, too
    warnings.simplefilter("ignore")
    env, renderer, counts, reasons = environment(), Renderer(args.program), collections.Counter(), collections.Counter()
    for number in range(args.templates):
        source = Generator(random.Random(f"{args.seed} {number}")).template()
        case = {"source": source, "variables": VARIABLES, "messages": [], "now": NOW}
        expected, found = render(env, source, case), renderer(case)
        if found == expected:
            outcome = "equal"
        elif "error" in found and "error" in expected:
            outcome = "refused by both"
        elif "error" in found:
            outcome = "refused here"
            reasons[re.sub(r"line \d+", "line N", found["error"])] += 1
            if "not supported" not in found["error"] and args.verbose:
                print("refused:", json.dumps(source, ensure_ascii=False), "\n  ", found["error"], "\n  ", expected)
        else:
            outcome = "DIFFERENT"
            print(json.dumps(source, ensure_ascii=False), "\n  expected", json.dumps(expected, ensure_ascii=False), "\n  found   ",
                  json.dumps(found, ensure_ascii=False), flush=True)
        counts[outcome] += 1
    if args.verbose:
        for reason, count in reasons.most_common():
            print(f"{count:6} {reason[:160]}")
    print(f"{args.templates} templates: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    bad = [reason for reason in reasons if "not supported" not in reason]
    for reason in bad:
        print("refused without saying that it is not supported:", reason)
    return 1 if counts["DIFFERENT"] or bad or not counts["equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
