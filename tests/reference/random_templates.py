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
FILTERS = ["trim", "upper", "lower", "capitalize", "title", "length", "count", "first", "last", "list", "string", "int", "float", "abs", "tojson", "sort", "unique",
           "reverse", "items", "dictsort", "sum", "min", "max", "join", "round", "safe", "escape", "e", "default", "d", "default('x')", "default('y', true)",
           "join(', ')", "join(s, attribute='k')", "replace('a', 'bb')", "replace('', '-')", "replace('l', 'L', 1)", "indent", "indent(2)", "indent(width=3, first=true)",
           "indent('> ', true, true)", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "tojson(indent=0)",
           "map('upper')", "map(attribute='k')", "map(attribute='v', default=0)", "map('length')", "map('string')", "map('default', 'q')", "select", "reject",
           "select('string')", "reject('equalto', 1)", "selectattr('v')", "selectattr('k', 'equalto', 'x')", "rejectattr('v', 'defined')", "selectattr('v', '>', 1)",
           "sort(reverse=true)", "sort(attribute='k')", "sort(case_sensitive=true)", "unique(case_sensitive=true)", "unique(attribute='k')", "dictsort(by='value')",
           "dictsort(reverse=true)", "round(1)", "round(2, 'floor')", "round(method='ceil')", "trim('a ')", "truncate(8)", "truncate(8, true, '~', 0)", "int(-1)",
           "float(0.5)", "sum(attribute='v')", "sum(start=10)", "max(attribute='v')", "list | length", "batch(2) | list", "center(20)", "attr('k')", "from_json"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "callable", "odd", "even",
         "divisibleby(3)", "divisibleby 2", "lower", "upper", "escaped", "in l", "in 'abc'", "equalto 1", "eq('a')", "ne none", "gt 1", "lt(2)", "ge 1", "sameas none",
         "sameas(true)", "filter", "test", "== 1"]
METHODS = ["strip()", "lstrip()", "rstrip()", "strip('H ')", "split()", "split('l')", "split(',', 1)", "split(maxsplit=1)", "rsplit('l', 1)", "splitlines()", "splitlines(true)",
           "startswith('H')", "endswith(('d', 'c '))", "replace('l', '_')", "replace('', '.')", "upper()", "lower()", "capitalize()", "title()", "join(w)", "find('l')",
           "rfind('l')", "index('l')", "count('l')", "count('')", "removeprefix('He')", "removesuffix('ld')", "isdigit()", "isalpha()", "isalnum()", "isspace()",
           "format(n, s)", "items()", "keys()", "values()", "get('a')", "get('zz')", "get('zz', 5)", "copy()", "append(1)", "index(1)", "count(1)", "islower()"]
ATTRIBUTES = ["a", "b", "k", "keys", "items", "zz", "a.b", "0", "x", "real", "update"]
SUBSCRIPTS = ["0", "-1", "1", "99", "'a'", "'keys'", "'zz'", "'x y'", "true", "1.0", "none", "n", "s", "1:", ":-1", "::2", "::-1", "-3:-1", "1:99:2", "5:1:-2", "m:", "'a':", ":0"]
LITERALS = ["0", "1", "2", "42", "-1", "1.5", "1e3", "0.1", "1_000", "'a'", '"b\\n"', "'é'", "'\\u00e9\\x41'", "''", "true", "none", "False", "[]", "{}", "()", "(1,)", "[1, 'a', none]",
            "{'a': 1, 2: 'b'}", "[[1, 2], [3]]", "('x', 'y')", "range(3)", "range(5, 0, -2)", "dict(a=1, b=s)", "'%s-%d' % (s, n)", "'{}:{}'.format(n, l)",
            "strftime_now('%Y-%m-%d %H:%M %b %B %A %j')", "'a' 'b'", "0x1F", "0b101", "1e400"]
BINARY = ["+", "-", "*", "/", "//", "%", "** 2 +", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
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
            return f"{self.pick(['not ', '-', '+'])}{wrapped()}"
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
            inside = "{{ loop." + self.pick(["index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem", "depth", "depth0", "zz"]) + " }}" + inside
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
            inside = self.body(depth - 1) + self.pick(["", "{{ caller() }}", "{{ varargs }}{{ kwargs }}", "{{ x }}", "{{ caller is defined }}"])
            self.in_loop = before
            call = self.pick(["m()", "m(1)", "m(1, 2)", "m(1, 2, 3)", "m(x=s)", "m(i=n, x=1)", "m(zz=1)", "m(*l)", "m(**o)", "m(s) | length"])
            called = f"{{% call {call} %}}{self.body(depth - 1)}{{% endcall %}}" if self.random.random() < 0.3 and "|" not in call else f"{{{{ {call} }}}}"
            return self.tag(f"macro m({parameters})") + inside + self.tag("endmacro") + called
        if kind == 15:
            return self.tag(self.pick(["with x = " + self.expression(1), "with", "with i = 1, x = i"])) + self.body(depth - 1) + self.tag("endwith")
        if kind == 16:
            filters = self.pick(["upper", "trim", "replace('a', 'b')", "indent(2, true) | upper", "length"])
            before, self.in_loop = self.in_loop, False
            inside = self.body(depth - 1)
            self.in_loop = before
            if self.random.random() < 0.5:
                return self.tag(f"filter {filters}") + inside + self.tag("endfilter")
            return self.tag(self.pick(["set x", f"set x | {filters}", "set ns.a"])) + inside + self.tag("endset") + "{{ x }}"
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
