#!/usr/bin/env python3
"""The server's page in headless Chromium.

    page_check.py URL KEYED_URL --key KEY --restart COMMAND [--pictures FOLDER] [--chromium FILE]

URL is a server with a chat template and without a key. KEYED_URL is one that asks for KEY and whose model has no chat template. COMMAND ends
the server of URL, starts it anew at the same address some seconds later, and returns at once or when it has. Both models should go on for 900
tokens when they continue a text (tests/golden/kjv-moe does). Needs `pip install playwright` and Debian's chromium. Ends with 1 where a check
fails. PICTURES are for eyes.
"""
import argparse, json, pathlib, shutil, subprocess, threading, time, urllib.request
from playwright.sync_api import expect, sync_playwright

TEXT = "In the beginning God created the heaven"
SLOW = 60_000  # ms: other programs may share the processors
expect.set_options(timeout=SLOW)

# Hands the page the bytes of every answer one by one.
CUT_EVERYWHERE = """
const whole = window.fetch;
window.fetch = async (...call) => {
  const answer = await whole(...call);
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const body = new ReadableStream({async start(to) {
    for (const byte of bytes) { to.enqueue(new Uint8Array([byte])); await null; }
    to.close();
  }});
  return new Response(body, {status: answer.status, headers: answer.headers});
};"""

# Hands the page answers as a slow model gives them: a small one has said everything before a finger is on the key.
SLOWLY = """
const whole = window.fetch;
window.fetch = async (...call) => {
  const answer = await whole(...call);
  const reader = answer.body.getReader();
  let rest = new Uint8Array(), ends = false;
  const body = new ReadableStream({async pull(to) {
    await new Promise(end => setTimeout(end, 10));
    while (rest.length === 0 && !ends) {
      const piece = await reader.read();
      ends = piece.done;
      if (!ends) rest = piece.value;
    }
    if (call[1]?.signal?.aborted) throw call[1].signal.reason;
    if (ends) return to.close();
    to.enqueue(rest.slice(0, 300));
    rest = rest.slice(300);
  }});
  return new Response(body, {status: answer.status, headers: answer.headers});
};"""

CONTRAST = """
selector => {
  const canvas = document.createElement("canvas").getContext("2d");
  const luminance = color => {
    canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const one = document.querySelector(selector);
  let behind = one;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  const both = [luminance(getComputedStyle(one).color), luminance(getComputedStyle(behind).backgroundColor)].sort((a, b) => b - a);
  return (both[0] + .05) / (both[1] + .05);
}"""


class Check:
    def __init__(self, browser, arguments):
        self.browser, self.arguments = browser, arguments
        self.requests, self.errors = [], []

    def open(self, url=None, script=None, **context):
        made = self.browser.new_context(**context)
        made.on("request", lambda request: self.requests.append(request.url))
        made.on("weberror", lambda error: self.errors.append(str(error.error)))
        if script:
            made.add_init_script(script)
        page = made.new_page()
        page.goto(url or self.arguments.url)
        return page

    def picture(self, page, name):
        if self.arguments.pictures:
            self.arguments.pictures.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=self.arguments.pictures / f"{name}.png")


def answers(page):
    return page.locator("#messages .assistant .text")


def done(page):
    expect(page.locator("#send")).to_be_visible()


def say(page, text):
    page.locator("#draft").fill(text)
    page.locator("#draft").press("Enter")


def set_fields(page, mode="chat", **fields):
    if page.locator("#settings").is_hidden():
        page.locator("#settings-button").click()
    page.locator(f"[name=mode][value={mode}]").check()
    for name, value in fields.items():
        page.locator(f"#settings [name={name}]").fill(str(value))


def streamed(url, *texts, line_end="\n"):
    events = [": ping", *("data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}, ensure_ascii=False) for text in texts),
              'data: {"choices": [],\ndata: "usage": {"prompt_tokens": 3, "completion_tokens": 4}}', "data: [DONE]"]
    body = "".join(event.replace("\n", line_end) + 2 * line_end for event in events)
    return lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body.encode())


def chat(check):
    page = check.open()
    expect(page.locator("#state")).to_have_text("Ready")
    model = page.locator("#model").inner_text()
    assert model == page.evaluate("fetch('v1/models').then(a => a.json()).then(m => m.data[0].id)"), model
    sent = []
    page.on("request", lambda request: request.method == "POST" and sent.append((request.url, json.loads(request.post_data))))
    draft = page.locator("#draft")
    expect(draft).to_be_focused()
    page.keyboard.type("And the LORD visited Sarah")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("as he had said.")
    assert not sent and draft.input_value().count("\n") == 1
    page.keyboard.press("Enter")
    done(page)
    expect(answers(page)).not_to_be_empty()
    expect(page.locator("#messages .assistant .note")).to_contain_text("tokens")
    url, body = sent[0]
    assert url.endswith("/v1/chat/completions") and body.keys() == {"stream", "stream_options", "model", "messages"}, body
    assert body["messages"] == [{"role": "user", "content": "And the LORD visited Sarah\nas he had said."}], body
    first = answers(page).inner_text()
    values = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1, "max_tokens": 24, "seed": 7}
    set_fields(page, system="Speak as Moses.", **values)
    say(page, "And it came to pass")
    done(page)
    body = sent[1][1]
    assert {name: body[name] for name in values} == values, body
    assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "user"], body
    assert body["messages"][2]["content"] == page.locator(".assistant .text").first.evaluate("e => e.textContent"), (body, first)
    set_fields(page, top_p=1.5)
    say(page, "not sent")
    time.sleep(0.5)
    assert len(sent) == 2 and draft.input_value() == "not sent"
    set_fields(page, top_p=0.9)
    page.reload()
    expect(page.locator("#messages li")).to_have_count(4)
    page.locator("#settings-button").click()
    expect(page.locator("[name=seed]")).to_have_value("7")
    page.locator("#new").click()
    expect(page.locator("#messages li")).to_have_count(0)
    expect(page.locator("#empty")).to_be_visible()


def stop(check):
    page = check.open(script=SLOWLY)
    for way in (lambda: page.keyboard.press("Escape"), lambda: page.locator("#stop").click()):
        page.locator("#new").click()
        set_fields(page, "text", max_tokens=900, temperature=0)
        say(page, TEXT)
        expect(answers(page)).not_to_be_empty()
        way()
        done(page)
        expect(page.locator(".assistant .note")).to_have_text("Stopped")
        length = len(answers(page).inner_text())
        time.sleep(0.5)
        assert length == len(answers(page).inner_text())
    page.locator("#draft").press("Enter")  # goes on from the end
    expect(answers(page)).to_have_count(2)
    expect(answers(page).last).not_to_be_empty()
    page.locator("#new").click()  # while it runs
    done(page)
    expect(page.locator("#messages li")).to_have_count(0)
    time.sleep(0.5)
    expect(page.locator("#messages li")).to_have_count(0)


def ask_in_vain(url, body):
    try:
        urllib.request.urlopen(urllib.request.Request(url, body)).read()
    except OSError:
        pass  # the server ends before


def restart(check):
    page = check.open()
    set_fields(page, "text", max_tokens=900, temperature=0)
    say(page, TEXT)
    done(page)
    wanted = answers(page).evaluate("e => e.textContent")
    assert len(wanted) > 400, wanted
    load = json.dumps({"prompt": TEXT, "n": 30, "max_tokens": 900}).encode()  # the restart must come between two tokens
    threading.Thread(target=ask_in_vain, args=(check.arguments.url + "/v1/completions", load), daemon=True).start()
    page.locator("#new").click()
    say(page, TEXT)
    expect(answers(page)).not_to_be_empty()
    command = subprocess.Popen(check.arguments.restart, shell=True)
    expect(page.locator("#state")).to_contain_text("retrying")
    check.picture(page, "restart")
    done(page)
    assert answers(page).evaluate("e => e.textContent") == wanted
    assert command.wait() == 0
    command = subprocess.Popen(check.arguments.restart, shell=True)  # while nothing runs
    time.sleep(1)
    say(page, " And")
    done(page)
    expect(page.locator("#messages li")).to_have_count(4)
    assert command.wait() == 0


def without_template(check):
    page = check.open(check.arguments.keyed_url)
    dialog = page.locator("#key-dialog")
    expect(dialog).to_be_visible()
    check.picture(page, "key")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#key-problem")).to_contain_text("does not know")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator("#problem-text")).to_contain_text("401")
    page.locator("#again").click()
    expect(dialog).to_be_visible()
    page.locator("#key").fill(check.arguments.key)
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("Ready")
    assert page.evaluate("Object.keys(localStorage).length === 0 && document.cookie === ''")
    say(page, TEXT)
    expect(page.locator("#problem-text")).to_contain_text("no chat template")
    check.picture(page, "no-template")
    page.locator("#as-text").click()
    done(page)
    expect(answers(page)).not_to_be_empty()
    expect(page.locator("#send")).to_have_text("Continue")
    expect(page.locator(".assistant .note")).to_contain_text("ended by the limit of tokens")


def faults(check):
    page = check.open(script=CUT_EVERYWHERE)
    markup = "<img src=x onerror=alert(1)><b>bold</b>"
    for line_end in ("\n", "\r\n", "\r"):
        page.route("**/chat/completions", streamed(page.url, "häß", "lich 🦊\n", "", markup, line_end=line_end))
        page.locator("#new").click()
        say(page, "?")
        done(page)
        assert answers(page).evaluate("e => e.textContent") == "häßlich 🦊\n" + markup
        expect(page.locator(".assistant .note")).to_contain_text("4 tokens after 3")
        page.unroute("**/chat/completions")
    assert page.locator("#messages img, #messages b").count() == 0
    for status in (429, 500):
        body = json.dumps({"error": {"message": f"for {status}", "code": status}})
        page.route("**/chat/completions", lambda route: route.fulfill(status=status, content_type="application/json", body=body))
        page.locator("#new").click()
        say(page, "?")
        expect(page.locator("#problem-text")).to_have_text(f"{status}: for {status}")
        page.unroute("**/chat/completions")
    page.route("**/chat/completions", streamed(page.url, "again"))
    page.locator("#again").click()
    expect(answers(page)).to_have_text("again")
    page.unroute("**/chat/completions")
    # An answer that ends without its end, then one with an error inside, then a whole one.
    bodies = ['data: {"choices": [{"delta": {"content": "half"}}]}\n\n', 'data: {"error": {"message": "the server is ending", "code": 503}}\n\n']
    page.route("**/chat/completions", lambda route: route.fulfill(status=200, content_type="text/event-stream", body=bodies.pop(0)) if bodies
               else streamed(page.url, "whole")(route))
    page.locator("#new").click()
    say(page, "?")
    expect(page.locator("#state")).to_have_text("503: the server is ending; retrying")
    done(page)
    expect(answers(page)).to_have_text("whole")


def policy(check):
    page = check.open()
    refused = "fetch('https://example.org/').then(() => 'allowed', () => 'refused')"
    assert page.evaluate(refused) == "refused"
    assert page.evaluate("(() => { try { document.body.innerHTML = '<b></b>'; return 'allowed'; } catch { return 'refused'; } })()") == "refused"
    assert page.evaluate("""new Promise(end => { const script = document.createElement('script');
        script.onerror = () => end('refused'); script.onload = () => end('allowed'); try { script.src = 'https://example.org/x.js'; }
        catch { end('refused'); } document.head.append(script); })""") == "refused"
    # The policy refused them before any network saw them; what follows must not count them as the page's own.
    check.requests = [url for url in check.requests if not url.startswith("https://example.org/")]


def by_keyboard(check):
    page = check.open()
    seen = []
    for _ in range(20):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.id || document.activeElement.name || document.activeElement.tagName")
        if name in ("settings-button",) and "temperature" not in seen and page.locator("#settings").is_hidden():
            page.keyboard.press("Enter")
            expect(page.locator("#settings")).to_be_visible()
            name = page.evaluate("document.activeElement.name")
        if name != "BODY":
            assert page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth) >= 2"), name
        seen.append(name)
    for wanted in ("new", "messages", "mode", "system", "temperature", "seed", "draft", "send"):
        assert wanted in seen, (wanted, seen)
    page.locator("[name=seed]").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.locator("#settings-button")).to_be_focused()
    unnamed = page.evaluate("""[...document.querySelectorAll('input, textarea, button')]
        .filter(e => !(e.labels?.length || e.textContent.trim())).map(e => e.outerHTML)""")
    assert unnamed == [], unnamed


def screens(check):
    for scheme in ("light", "dark"):
        for name, width, height in (("wide", 1000, 640), ("small", 360, 640), ("low", 640, 360)):
            page = check.open(color_scheme=scheme, viewport={"width": width, "height": height}, has_touch=name == "small")
            set_fields(page, "text", max_tokens=60, temperature=0.7, top_p=0.9, seed=3)
            check.picture(page, f"{name}-{scheme}-settings")
            fits(page, width, height, "#settings")
            say(page, TEXT)
            done(page)
            say(page, " And God said,")
            done(page)
            check.picture(page, f"{name}-{scheme}")
            fits(page, width, height, "#composer")
            fits(page, width, height, "#send")
            for selector in ("#draft", "#keys", "#send", ".user .text", ".assistant .text", ".assistant .note", "#settings-button"):
                ratio = page.evaluate(CONTRAST, selector)
                assert ratio >= 4.5, (scheme, selector, ratio)
            page.context.close()
    page = check.open(reduced_motion="reduce")
    animation = """(() => { const item = document.createElement('li'); item.className = 'writing';
        const text = document.createElement('p'); text.className = 'text'; item.append(text); document.getElementById('messages').append(item);
        return getComputedStyle(text, '::after').animationName; })()"""
    assert page.evaluate(animation) == "none"
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(animation) == "blink"


def fits(page, width, height, selector):
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width, "the page is wider than the screen"
    box = page.locator(selector).bounding_box()
    assert box["x"] >= 0 and box["y"] >= 0 and box["x"] + box["width"] <= width and box["y"] + box["height"] <= height, (selector, box)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("keyed_url")
    parser.add_argument("--key", required=True)
    parser.add_argument("--restart", required=True)
    parser.add_argument("--pictures", type=pathlib.Path)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--only")
    arguments = parser.parse_args()
    failed = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=arguments.chromium)
        for run in (chat, stop, faults, without_template, policy, by_keyboard, screens, restart):
            if arguments.only and run.__name__ != arguments.only:
                continue
            check = Check(browser, arguments)
            begin = time.time()
            try:
                run(check)
                own = (arguments.url.rstrip("/") + "/", arguments.keyed_url.rstrip("/") + "/", "data:")
                elsewhere = [url for url in check.requests if not url.startswith(own)]
                assert elsewhere == [], elsewhere
                assert check.errors == [], check.errors
                print(f"{run.__name__}: passed, {len(check.requests)} requests, {time.time() - begin:.1f} s", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"{run.__name__}: FAILED: {error!r}", flush=True)
            for context in browser.contexts:
                context.close()
        browser.close()
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
