#!/usr/bin/env python3
"""describe_program.py man|bash NAME PROGRAM [COMMAND...]: the manual page or the bash completion of PROGRAM, on stdout, from what it says with
--help (base/options/help_formatter.h); NAME is what it will be called. COMMANDs are those that --help does not list under "Subcommands"."""

import re
import subprocess
import sys

TEXT_COLUMN = 30  # where descriptions begin


class Option:

    def __init__(self, group, signature, text):
        self.group, self.text = group, text
        names, self.value = re.match(r"((?:-\w, )?\S+) ?(.*)", signature).groups()
        self.names = names.split(", ")
        self.choices = self.value.split("|") if "|" in self.value else []


class Help:
    """What one command says with --help."""

    def __init__(self, program, command=None):
        words = [program] + ([command] if command else []) + ["--help"]
        text = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout
        self.command = command
        self.description, self.usage, self.exit_codes = [], "", ""
        self.options, self.positionals, self.commands = [], [], []
        section, group, lines = self.description, "", text.splitlines()
        for at, line in enumerate(lines):
            if line.startswith("Usage: "):
                self.usage = line[len("Usage: "):]
            elif heading := re.fullmatch(r"([A-Za-z]+):", line):
                group = heading[1].capitalize()
                section = {"Arguments": self.positionals, "Subcommands": self.commands}.get(group, self.options)
            elif line.startswith(" " * TEXT_COLUMN):
                section[-1].text += (" " if section[-1].text else "") + line.strip()
            elif line.startswith("  "):
                beside = line[TEXT_COLUMN - 2:TEXT_COLUMN] == "  "
                section.append(Option(group, line[:TEXT_COLUMN if beside else None].strip(), line[TEXT_COLUMN:].strip() if beside else ""))
            elif line.startswith("Exit codes: "):
                self.exit_codes = " ".join(lines[at:])[len("Exit codes: "):].strip()
                break
            elif section is self.description and line:
                section.append(line)


def read_all(program, commands):
    main = Help(program)
    commands = [command.names[0] for command in main.commands] + commands
    return main, [Help(program, command) for command in commands]


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)


def man_options(options):
    lines, group = [], None
    for option in options:
        if option.group != group:
            group = option.group
            lines += [f".SS {group}"]
        names = ", ".join(rf"\fB{escape(name)}\fR" for name in option.names)
        lines += [".TP", names + (rf" \fI{escape(option.value)}\fR" if option.value else ""), escape(option.text.rstrip(".") + ".")]
    return lines


def manual(name, version, main, commands):
    summary = main.description[0].split(":")[0].rstrip(".")
    lines = [f'.TH {name.upper()} 1 "" "{version}" "User Commands"', ".SH NAME", escape(f"{name} - {summary[0].lower()}{summary[1:]}"), ".SH SYNOPSIS"]
    for each in [main, *commands]:
        lines += [rf"\fB{escape(name)}\fR {escape(each.usage.partition(' ')[2])}", ".br"]
    lines[-1:] = [".SH DESCRIPTION"] + [line for text in main.description for line in (escape(text), ".br")][:-1]
    lines += [".SH OPTIONS"] + man_options(main.positionals + main.options)
    for each in commands:
        lines += [f".SH {each.command.upper()}"] + [line for text in each.description for line in (escape(text), ".br")][:-1]
        lines += man_options(each.positionals + each.options)
        if each.exit_codes:
            lines += [".PP", "Exit status: " + escape(each.exit_codes)]
    if main.exit_codes:
        lines += [".SH EXIT STATUS", escape(main.exit_codes)]
    return "\n".join(lines) + "\n"


def completion(name, main, commands):
    function = "_" + re.sub(r"\W", "_", name)
    values, options = [], []
    for each in [main, *commands]:
        command = each.command or ""
        for option in each.options:
            names = "|".join(f"{command}:{spelling}" for spelling in option.names)
            if option.choices:
                values.append(f"    {names}) COMPREPLY=($(compgen -W '{' '.join(option.choices)}' -- \"$cur\")); return ;;")
            elif option.value == "DIR":
                values.append(f"    {names}) compopt -o filenames; COMPREPLY=($(compgen -d -- \"$cur\")); return ;;")
            elif option.value.startswith("FILE") or option.value in ("MODEL", "TEXT"):
                values.append(f"    {names}) compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\")); return ;;")
            elif option.value:
                values.append(f"    {names}) return ;;")
        words = [spelling for option in each.options for spelling in option.names]
        options.append(f"    {command or chr(39) * 2}) options='{' '.join(words)}' ;;")
    known = "|".join(each.command for each in commands)
    return f"""# bash completion for {name}
{function}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command='' options=''
  COMPREPLY=()
  [ "$COMP_CWORD" -lt 2 ] || case ${{COMP_WORDS[1]}} in {known}) command=${{COMP_WORDS[1]}} ;; esac
  case $command:$previous in
{chr(10).join(values)}
  esac
  case $command in
{chr(10).join(options)}
  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
  elif [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{known.replace('|', ' ')}' -- "$cur"))
  else
    compopt -o filenames
    COMPREPLY=($(compgen -f -- "$cur"))
  fi
}}
complete -F {function} {name}
"""


def main():
    form, name, program, *commands = sys.argv[1:]
    top, below = read_all(program, commands)
    if form == "man":
        version = subprocess.run([program, "--version"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
        print(manual(name, version, top, below), end="")
    else:
        print(completion(name, top, below), end="")


if __name__ == "__main__":
    main()
