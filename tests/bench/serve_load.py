#!/usr/bin/env python3
"""serve_load.py URL [--streams 1,8,64,256 | --rate 100,200] [--seconds 60] [--prompt 64] [--common 0] [--tokens 96] [--vocab 65536] [--processes N]:
load on a server.

Closed loop: runs one client for each stream, for each number of --streams in turn. Until --seconds are over, a client sends streamed requests to
/v1/completions, one after the other. Percentiles leave out the first request of each client, because all clients begin at once.
Open loop: for each number of --rate in turn, that many requests arrive in a second on average, with exponentially distributed gaps (a Poisson process),
whether earlier ones have ended or not. tokens/s counts the time until the last answer has ended.
A prompt has --prompt random token ids below --vocab, and an answer --tokens tokens. The first --common
ids are the same in all prompts, so that a prefix cache finds them. URL may name any server of this API that accepts lists of token ids and
`ignore_eos`, and needs neither a key nor a model's name.
Prints tokens/s by the answers' usage, and the median and 99th percentile of the time to the first token and between two tokens of a stream
(a token without a text of its own, as a part of a character, is not seen there). Only Python's standard library; several processes, because
one cannot read as fast as a GPU writes.
"""
import argparse, asyncio, json, multiprocessing, os, random, sys, time, urllib.parse


async def stream_once(address, body, record):
    begin = time.perf_counter()
    writer = None
    try:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        status = await reader.readline()
        if b" 200 " not in status:
            record["errors"].append(status.decode(errors="replace").strip())
            return
        before, pieces, tokens, done, rest = begin, 0, 0, False, b""
        while data := await reader.read(1 << 16):
            now = time.perf_counter()
            rest += data
            lines = rest.split(b"\n")
            rest = lines.pop()
            new = sum(line.startswith(b'data: {"id"') for line in lines)
            for line in lines:
                if b'"usage":{' in line:
                    tokens, new = json.loads(line[6:])["usage"]["completion_tokens"], new - 1
            done |= any(line.startswith(b"data: [DONE]") for line in lines)
            if new:
                (record["between"] if pieces else record["first"]).append(now - before)
                if new > 1:  # tokens that came together
                    record["between"].extend([0.0] * (new - 1))
                pieces += new
                before = now
        record["tokens"] += tokens
        record["requests"] += done
        if not done:
            record["errors"].append("a stream that ended early")
    except OSError as error:
        record["errors"].append(str(error))
    finally:
        if writer is not None:
            writer.close()


def new_record():
    return {"first": [], "between": [], "requests": 0, "tokens": 0, "errors": []}


def request_body(args, choose):
    common = random.Random(0).choices(range(args.vocab), k=args.common)
    ids = common + [choose.randrange(args.vocab) for _ in range(args.prompt - args.common)]
    return json.dumps({"prompt": ids, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}}).encode()


async def client(args, address, seed, end, record):
    choose = random.Random(seed)
    first = new_record()
    await stream_once(address, request_body(args, choose), first)
    for name in ("requests", "tokens", "errors"):
        record[name] += first[name]
    while time.time() < end:
        await stream_once(address, request_body(args, choose), record)


async def arrivals(args, address, seed, rate, end, record):
    """Begins requests at random instants, `rate` a second on average, until `end`; then waits for their answers."""
    choose, at, requests = random.Random(seed), time.time(), []
    while (at := at + choose.expovariate(rate)) < end:
        await asyncio.sleep(max(0, at - time.time()))
        requests.append(asyncio.create_task(stream_once(address, request_body(args, choose), record)))
    await asyncio.gather(*requests)


def process(args, address, load, seed, end, queue):
    """One process of several. `load` is its number of streams, or its rate."""
    record = new_record()

    async def run():
        if args.rate:
            await arrivals(args, address, seed, load, end, record)
        else:
            await asyncio.gather(*(client(args, address, seed + i, end, record) for i in range(load)))

    asyncio.run(run())
    queue.put(record)


def shares(args, load):
    """What each process does of `load`."""
    if args.rate:
        return [load / args.processes] * args.processes
    count = min(args.processes, load)
    return [load // count + (i < load % count) for i in range(count)]


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1e3 if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--streams", default="1,8,64,256")
    parser.add_argument("--rate", help="requests a second, instead of --streams")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--common", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--vocab", type=int, default=65536)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    args = parser.parse_args()
    url = urllib.parse.urlparse(args.url)
    failed = 0
    for load in map(float, args.rate.split(",")) if args.rate else map(int, args.streams.split(",")):
        begin = time.time()
        queue, workers = multiprocessing.Queue(), []
        for i, share in enumerate(shares(args, load)):
            # Other prompts for each load: what a server has kept of the prompts before would be taken.
            seed = int(1_000_000 * load) + 1000 * i
            workers.append(multiprocessing.Process(target=process, args=(args, (url.hostname, url.port), share, seed, begin + args.seconds, queue)))
            workers[-1].start()
        records = [queue.get() for _ in workers]
        for worker in workers:
            worker.join()
        seconds = time.time() - begin
        first, between, errors = (sum((record[name] for record in records), []) for name in ("first", "between", "errors"))
        requests, tokens = (sum(record[name] for record in records) for name in ("requests", "tokens"))
        print(f"{load:5} {'requests/s' if args.rate else 'streams'}: {tokens / seconds:9.0f} tokens/s, {requests} requests in {seconds:.1f} s; first token {percentile(first, 0.5):.1f} ms "
              f"(p99 {percentile(first, 0.99):.1f}), between tokens {percentile(between, 0.5):.2f} ms (p99 {percentile(between, 0.99):.2f}); "
              f"{len(errors)} errors {errors[:3] if errors else ''}", flush=True)
        failed += len(errors)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
