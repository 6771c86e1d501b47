#!/usr/bin/env python3
"""faults.py LFM2_STAGE MPIRUN SHARDS [PART...]: what clients and machines do to a server. Only Python's standard library.

    streams   many streams at a time, through tests/bench/serve_load.py: no errors
    vanish    clients that go at random instants: nothing runs or waits afterwards, slots and pages are free, memory stays
    senders   connections that send a byte a second: others are answered as fast as before
    bodies    bodies and heads that are too large, broken or deep: an answer or a closed connection, in bounded memory
    memory    bodies that take much memory, where little is left: an answer to each, and the server goes on
    readers   streams that nobody reads: they are ended, and hold back nobody
    keys      who has no key gets nothing
    ranks     each rank killed, and stopped, under load: the run ends in time with 76 or the launcher's code

Without PART all of them. The numbers are options; their defaults are those of the whole test, ctest's are smaller."""

import argparse
import os
import resource
import sys
import time

from bodies import test_bodies, test_memory
from clients import test_keys, test_readers, test_senders, test_streams, test_vanish
from ranks import test_ranks
from server import Failed

TESTS = {"streams": test_streams, "vanish": test_vanish, "senders": test_senders, "bodies": test_bodies, "memory": test_memory, "readers": test_readers, "keys": test_keys, "ranks": test_ranks}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=os.path.abspath)
    parser.add_argument("mpirun")
    parser.add_argument("shards", type=os.path.abspath, help="of the trained model of the tests (kjv-moe)")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(TESTS))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20, help="of streams")
    parser.add_argument("--clients", type=int, default=2000, help="that vanish")
    parser.add_argument("--senders", type=int, default=1000)
    parser.add_argument("--until-late", action="store_true", help="wait until the senders are told that they are late")
    parser.add_argument("--body-bytes", type=int, default=10**9)
    parser.add_argument("--at-once", type=int, default=4, help="senders of bad bodies")
    parser.add_argument("--left", type=lambda text: [int(one) for one in text.split(",")], default=[48, 96, 192, 384, 768], metavar="MIB,...", help="memory that is left for each large body")
    parser.add_argument("--readers", type=int, default=256)
    parser.add_argument("--hurt", default="", help="the ranks that are killed and stopped, as in 0,3; default: each")
    args = parser.parse_args()
    unknown = set(args.parts) - set(TESTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: expected {', '.join(TESTS)}")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    failed = 0
    for part in args.parts or TESTS:
        begin = time.monotonic()
        try:
            result = TESTS[part](args)
        except Failed as failure:
            result = f"FAILED: {failure}"
            failed = 1
        print(f"{part} ({time.monotonic() - begin:.1f} s): {result}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
