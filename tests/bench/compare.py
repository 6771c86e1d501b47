#!/usr/bin/env python3
"""compare.py BASELINE.jsonl NEW.jsonl [--tolerance 0.1]: benches against a baseline of the same hardware.

Each line is {"bench": name, "seconds": s, "share": share of the ceiling measured in the same run}, or one of gpu_jobs.py, {"job": name,
"speed": speed}, or one of cpu_peers.py, whose share is the ratio to llama.cpp. Where both have a share it is compared, for clocks differ
from day to day; else the seconds or the speed. Of several lines of one name the best counts.
Ends with 1 where a bench is slower than the baseline by more than the tolerance, or missing.
"""
import argparse
import json
import statistics
import sys

from results_table import key


def read(path):
    best = {}
    with open(path) as lines:
        for text in lines:
            line = json.loads(text)
            if "job" in line:
                line = {"bench": line["job"], "seconds": 1 / line["speed"]}
            elif "line" in line:
                line = {"bench": key(line), "seconds": 1 / statistics.median(line["ours"]), "share": line["ratio"]}
            old = best.get(line["bench"])
            if old is None or line["seconds"] < old["seconds"]:
                best[line["bench"]] = line
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baseline")
    parser.add_argument("new")
    parser.add_argument("--tolerance", type=float, default=0.1)
    options = parser.parse_args()
    baseline, new = read(options.baseline), read(options.new)
    bad = 0
    for name, old in baseline.items():
        if name not in new:
            print(f"MISSING  {name}")
            bad += 1
            continue
        line = new[name]
        if "share" in old and "share" in line and old["share"] > 0:
            ratio, what = line["share"] / old["share"], "share"
        else:
            ratio, what = old["seconds"] / line["seconds"], "speed"
        word = "ok" if ratio >= 1 - options.tolerance else "SLOWER"
        bad += word != "ok"
        print(f"{word:<8} {ratio:6.3f} of the baseline's {what}  {name}")
    for name in new.keys() - baseline.keys():
        print(f"new      {name}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
