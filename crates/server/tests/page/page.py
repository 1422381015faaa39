#!/usr/bin/env python3
"""The chat page in headless Chromium, against prepared answers.

    python3 crates/server/tests/page/page.py PATH_OF_IRONSTAR [--shots FOLDER] [--page FOLDER]

Types as a person does, and looks at what the page shows. `--page crates/server/src/page` gives the
browser those files instead of the page within the binary; `--shots` keeps screenshots. Needs
Chromium and nothing else, driven through its DevTools pipe, and a binary with the bundled model.
Ends with 1 where a check does not hold.
"""

import argparse
import base64
import contextlib
import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).parent
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "chrome"]
# As routes.rs joins them.
PARTS = ["index.html", "markdown.js", "chat.js"]
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "ArrowUp": (38, ""), "F2": (113, ""),
        "k": (75, "")}
CONTROL, SHIFT = 2, 8
# Longest wait for anything, in seconds. Only what hangs takes so long: a machine may be busy.
PATIENCE = 120


class Browser:
    """Chromium with one page; commands go through file descriptors 3 and 4."""

    def __init__(self, program, folder, replaced):
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()

        def wire():
            # Both are copied away first: either may itself be 3 or 4.
            ends = os.dup(to_read), os.dup(back_write)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                 "--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage",
                 f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen([program, *flags], close_fds=False, preexec_fn=wire,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(back_write)
        self.rest, self.count, self.session, self.replaced = b"", 0, None, replaced
        self.problems, self.requests, self.answer_to_dialogs = [], [], True
        made = self.ask("Target.createTarget", url="about:blank")
        attached = self.ask("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.ask(f"{domain}.enable")
        if replaced:
            page = {"urlPattern": "http://*/", "requestStage": "Request"}
            self.ask("Fetch.enable", patterns=[page])

    def ask(self, method, **params):
        """One command and its result; events that come before it are taken on the way."""
        number = self.send(method, params)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            message = self.receive(deadline)
            if message.get("id") == number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self.event(message)
        raise AssertionError(f"Chromium does not answer to {method}")

    def send(self, method, params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        return self.count

    def receive(self, deadline):
        while b"\0" not in self.rest:
            wait = max(0, deadline - time.monotonic())
            if not select.select([self.back], [], [], wait)[0]:
                raise AssertionError("Chromium is silent")
            piece = os.read(self.back, 1 << 20)
            if not piece:
                raise AssertionError("Chromium is gone")
            self.rest += piece
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def event(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["source"] == "security":
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.send("Page.handleJavaScriptDialog", {"accept": self.answer_to_dialogs})
        elif method == "Fetch.requestPaused":
            self.send("Fetch.fulfillRequest", {
                "requestId": params["requestId"], "responseCode": 200,
                "responseHeaders": [{"name": "content-type", "value": "text/html; charset=utf-8"}],
                "body": base64.b64encode(self.replaced.encode()).decode()})

    def run(self, script):
        """The value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True,
                          awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, script, what, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while not self.run(script):
            if time.monotonic() > deadline:
                shown = self.run("document.querySelector('main').innerText")
                raise AssertionError(f"did not happen in {seconds} s: {what}. Shown:\n{shown}")
            time.sleep(0.03)

    def open(self, url):
        self.ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && typeof loadModel === 'function'"
                   " && model.name !== ''", "the page is loaded and knows the model")

    def key(self, name, modifiers=0):
        code, text = KEYS[name]
        same = {"key": name, "code": "KeyK" if name == "k" else name, "modifiers": modifiers,
                "windowsVirtualKeyCode": code}
        down = {"text": text} if text else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **same, **down)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **same)

    def type(self, text):
        self.ask("Input.insertText", text=text)

    def click(self, selector):
        """A press of the mouse in the middle of what a selector finds."""
        place = self.run(f"(() => {{ const e = document.querySelector({selector!r});"
                         "e.scrollIntoView({block: 'nearest'});"
                         "const r = e.getBoundingClientRect();"
                         "return [r.x + r.width / 2, r.y + r.height / 2, r.width]; })()")
        assert place[2] > 0, f"{selector} is not to be seen"
        for kind in ["mousePressed", "mouseReleased"]:
            self.ask("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left",
                     clickCount=1)

    def shot(self, path, width=1200, height=860, dark=False):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        time.sleep(0.2)
        data = self.ask("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self):
        with contextlib.suppress(Exception):
            self.send("Browser.close", {})
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Page:
    """What a person does with the page."""

    def __init__(self, browser, address, shots):
        self.browser, self.address, self.shots = browser, address, shots

    def ask(self, question, wait=True):
        self.browser.click("#question")
        self.browser.type(question)
        self.browser.key("Enter")
        if wait:
            self.done()

    def done(self):
        self.browser.until("running === null", "the answer is complete")

    def last(self):
        return self.browser.run("document.querySelector('.assistant:last-child').innerText")

    def count(self, selector):
        return self.browser.run(f"document.querySelectorAll({selector!r}).length")

    def shot(self, name, **how):
        if self.shots:
            self.browser.shot(self.shots / f"{name}.png", **how)


def check(found, what):
    if not found:
        raise AssertionError(what)


def asks_and_streams(page):
    browser = page.browser
    page.shot("empty")
    check(browser.run("document.activeElement.id") == "question", "the field has the focus")
    browser.type("hello")
    browser.key("Enter", SHIFT)
    browser.type("there")
    check(browser.run("$('question').value") == "hello\nthere", "Shift+Enter makes a line")
    browser.key("Enter")
    page.done()
    check("Hello, wörld 👋!" in page.last(), page.last())
    details = "document.querySelector('details.thought')"
    check(not browser.run(f"{details}.open"), "thinking is folded")
    browser.click("details.thought summary")
    browser.until(f"{details}.open", "thinking unfolds")
    browser.run("show()")
    check(browser.run(f"{details}.open"), "and stays so")
    check(browser.run(f"{details}.querySelector('div').textContent") == "I think about it.",
          "thinking is there")
    check(re.search(r"\d+ tokens", page.last()), f"the answer's facts: {page.last()}")
    check("65\u202f536" in browser.run("$('room').textContent"), "the context's gauge")
    check(browser.run("$('context').value") > 0, "the context's meter")
    check(browser.run("$('question').value") == "", "the field is empty again")


def streams_and_stops(page):
    browser = page.browser
    page.ask("endless please", wait=False)
    text = "document.querySelector('.assistant:last-child .prose')?.textContent.length ?? 0"
    browser.until(f"({text}) > 20", "an answer that has no end shows its beginning")
    check(browser.run("running !== null"), "it is still being written")
    before = browser.run(text)
    browser.until(f"({text}) > {before} + 20", "it grows")
    check(browser.run("$('speed').textContent").endswith("tokens/s"), "the speed's gauge")
    page.shot("running")
    browser.key("Escape")
    page.done()
    check("stopped" in page.last(), page.last())
    length = browser.run(text)
    time.sleep(0.3)
    check(browser.run(text) == length, "nothing comes after the stop")
    deadline = time.monotonic() + PATIENCE
    while browser.run("fetch('/health').then((r) => r.json()).then((h) => h.requests_running)"):
        check(time.monotonic() < deadline, "the server ends a stopped answer")


def regenerates_and_edits(page):
    browser = page.browser
    answers = page.count(".assistant")
    browser.click("#question")
    browser.key("ArrowUp")
    check(browser.run("document.activeElement.value") == "endless please", "the message is edited")
    browser.run("document.activeElement.select()")
    browser.type("the second one")
    browser.key("Enter")
    page.done()
    check("The second answer." in page.last(), page.last())
    check(page.count(".assistant") == answers, "the answer was replaced")
    browser.run("window.sent = []; window.real = fetch;"
                "fetch = (...a) => { sent.push(a); return real(...a); }")
    browser.run("[...document.querySelectorAll('.tail button')]"
                ".find((b) => b.textContent === 'Regenerate').click()")
    page.done()
    body = json.loads(browser.run("sent.find((a) => a[0].endsWith('completions'))[1].body"))
    check([m["role"] for m in body["messages"]] == ["user", "assistant", "user"],
          f"all but the old answer is sent: {body}")
    check(body["messages"][1]["reasoning_content"] == "I think about it.", "with its reasoning")
    check("The second answer." in page.last() and page.count(".assistant") == answers, page.last())


def hostile_answers_run_nothing(page):
    browser = page.browser
    page.ask("something hostile")
    time.sleep(0.3)
    check(browser.run("window.broken === undefined"), f"{browser.run('window.broken')} ran")
    inside = ".assistant:last-child :is(img, script, iframe, style, svg, object, form)"
    check(page.count(inside) == 0, "no element of the answer's own")
    check(page.count(".assistant:last-child a:not([href^='https:'])") == 0, "harmless addresses")
    check(page.count(".assistant:last-child a[onmouseover]") == 0, "no attributes of its own")
    check("<script>window.broken=2</script>" in page.last(), "it is shown as it is")
    # The check itself can see a script that runs.
    refused = browser.run("(() => { try { document.body.innerHTML += 'x'; return 'allowed'; }"
                          " catch (e) { return e.name; } })()")
    check(refused == "TypeError", f"innerHTML is {refused}")
    foreign = [url for url in browser.requests
               if not url.startswith((page.address, "data:", "about:"))]
    check(not foreign, f"requests to others: {foreign}")
    browser.problems.clear()


def shows_markdown(page):
    browser = page.browser
    browser.key("k", CONTROL)
    check(page.count(".message") == 0, "Ctrl+K begins a chat")
    page.ask("all of markdown")
    prose = ".assistant:last-child .prose"
    for selector, number in [("h2", 1), ("strong", 3), ("em", 3), ("p > code", 1), ("a", 2),
                             ("ol > li", 3), ("ol ul > li", 2), (".block pre", 2), ("del", 1),
                             ("blockquote strong", 1), ("table tbody tr", 2), ("hr", 1)]:
        found = page.count(f"{prose} {selector}")
        check(found == number, f"{found} of {selector}, wanted {number}")
    check("2 * 3 * 4 and snake_case_name" in page.last(), "marks that are none")
    check(browser.run(f"document.querySelector('{prose} table tr:last-child td:last-child')"
                      ".textContent") == "a | b", "a bar within a cell")
    code = f"document.querySelector('{prose} > .block code').textContent"
    check(browser.run(code).endswith('", 3);\n}'), browser.run(code))
    browser.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.click(f"{prose} > .block button")
    browser.until("window.copied !== undefined", "the code is copied")
    check(browser.run(f"copied === {code}"), "as it is")
    for name, how in [("light", {}), ("dark", {"dark": True}), ("narrow", {"width": 390}),
                      ("narrow-dark", {"width": 390, "dark": True})]:
        page.shot(name, **how)
    wide = browser.run("document.documentElement.scrollWidth - innerWidth")
    check(wide <= 0, f"{wide} pixels are beyond the screen's edge")
    if page.shots:
        browser.run("draws(true)")
        page.shot("narrow-chats", width=390)
        browser.run("draws(false)")
    browser.ask("Emulation.clearDeviceMetricsOverride")
    # Pieces of any size give the same document as the whole.
    same = browser.run("""(() => {
      const text = chat.messages.at(-1).content;
      const whole = new Prose(); whole.show(text);
      const grown = new Prose();
      let first;
      for (let at = 0; at <= text.length; at += 3) {
        grown.show(text.slice(0, at));
        if (at > 400) first ??= grown.node.firstChild;
      }
      grown.show(text);
      return [whole.node.isEqualNode(grown.node), first === grown.node.firstChild]; })()""")
    check(same == [True, True], f"a text that grew looks as one that came whole, and kept: {same}")


def survives_steep_texts(page):
    page.ask("something steep")
    took = page.browser.run("""(() => {
      const begin = performance.now();
      for (const piece of ['[', '*a ', '`'.repeat(3) + 'a', '**a*', '> ', '- ', '| a ', '_a_', '<',
        '[a](', '![', '~~a', 'http://', '\\\\', '  - a\\n', '1. ', '*a**b_', '``a`', '|-|\\n'])
        new Prose().show(piece.repeat(30000 / piece.length));
      return performance.now() - begin; })()""")
    check(took < PATIENCE * 1000, f"nineteen texts of 30,000 characters took {took:.0f} ms")


def errors_stand_in_the_answers_place(page):
    browser = page.browser
    page.ask("fail now")
    check(page.count(".assistant:last-child .error") == 1, page.last())
    check("some" in page.last(), f"what came before is kept: {page.last()}")
    page.shot("error")
    browser.click("#configure")
    browser.run("$('settings').querySelector('[name=temperature]').value = '0.5';"
                "$('settings').querySelector('[name=max_tokens]').value = '99999999'")
    page.shot("settings")
    browser.click("#settings .main")
    page.ask("too much")
    body = json.loads(browser.run("JSON.stringify(request(chat.messages.slice(0, -1)))"))
    check((body["temperature"], body["max_tokens"]) == (0.5, 99999999), f"settings: {body}")
    browser.run("settings.temperature = '7'; settings.max_tokens = ''")
    page.ask("too hot")
    check("temperature" in page.last() and page.count(".assistant:last-child .error") == 1,
          f"the server's message: {page.last()}")
    browser.run("settings.temperature = ''; store.keep(settings)")


def finds_its_chats_again(page):
    browser = page.browser
    chats = page.count("#sessions li")
    check(chats == 2, f"{chats} chats")
    browser.open(page.address)
    check(page.count("#sessions li") == chats and page.count(".message") > 0, "chats are kept")
    browser.run("document.querySelector('#sessions .open').focus()")
    browser.key("F2")
    browser.type("My <b>chat</b>")
    browser.key("Enter")
    browser.run("localStorage.setItem('ironstar/chat/a', '{\"messages\": [{\"role\": 7');"
                "localStorage.setItem('ironstar/chat/b',"
                " '{\"messages\": [{\"role\": \"user\", \"content\": 5}]}');"
                "localStorage.setItem('ironstar/chat/c', JSON.stringify({title: 7, messages: ["
                " {role: 'assistant', content: 'odd', reasoning: 1, error: {}, images: 'no',"
                "  facts: {rate: '5', tokens: [], first: {}, end: 'stopped'}}]}));"
                "localStorage.setItem('ironstar/settings', '[[')")
    browser.open(page.address)
    names = browser.run("[...document.querySelectorAll('#sessions .open')].map((b) => b.innerText)")
    check(names[0] == "My <b>chat</b>", f"renamed: {names}")
    check(names.count("Damaged chat") == 2 and len(names) == chats + 3, f"damaged: {names}")
    page.shot("damaged")
    browser.run("document.querySelector('#sessions [title=Untitled]').click()")
    check("odd" in page.last() and "stopped" in page.last(), f"an odd chat: {page.last()}")
    browser.run("document.querySelector('#sessions [aria-label=\"Delete Untitled\"]').click()")
    browser.run("document.querySelector('#sessions .open:not(.damaged)').click()")
    for _ in range(2):
        browser.run("document.querySelector('#sessions .damaged ~ [title=Delete]').click()")
    browser.click("#sessions li.current [title=Delete]")
    browser.until(f"document.querySelectorAll('#sessions li').length === {chats - 1}", "deleted")
    check(browser.run("Object.keys(localStorage).filter((k) => k.startsWith(CHAT)).length")
          == chats - 1, "and gone from the store")
    page.ask("hello")
    check("Hello" in page.last(), "the page still works")


def images_are_offered_to_models_that_see(page):
    browser = page.browser
    check(browser.run("$('attach').hidden"), "this model does not see")
    browser.run("model.vision = true; showModel()")
    check(not browser.run("$('attach').hidden"), "this one would")
    browser.run("images = ['data:image/png;base64,iVBORw0KGgo=']; showImages()")
    page.ask("what is this")
    check(page.count(".assistant:last-child .error") == 1, "the server refuses images")
    browser.run("model.vision = false; showModel()")


def wants_its_key(page):
    """At a server with a key."""
    browser = page.browser
    browser.ask("Page.navigate", url=page.address)
    browser.until("typeof loadModel === 'function' && !$('notice').hidden"
                  " && $('notice').innerText.includes('API key')", "it is told")
    page.ask("hello")
    check("wants a key" in page.last(), page.last())
    page.shot("key")
    browser.click("#log .error button")
    browser.run("$('settings').querySelector('[name=key]').focus()")
    browser.type("a-key-for-tests")
    browser.key("Enter")
    browser.until("model.name === 'scripted' && $('notice').hidden", "the key opens")
    browser.run("regenerate()")
    page.done()
    check("Hello" in page.last(), page.last())
    check("a-key" not in browser.run("JSON.stringify({...localStorage})"), "the key is not kept")


@contextlib.contextmanager
def served(binary, *more):
    command = [binary, "serve", "--scripted", str(HERE / "play.json"), "--port", "0", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        told = ""
        for line in process.stdout:
            told += line
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                # Log lines of requests must not fill the pipe.
                threading.Thread(target=process.stdout.read, daemon=True).start()
                yield found[0] + "/"
                return
        raise AssertionError(f"the server did not start:\n{told}")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


CHECKS = [asks_and_streams, streams_and_stops, regenerates_and_edits, hostile_answers_run_nothing,
          shows_markdown, survives_steep_texts, errors_stand_in_the_answers_place,
          finds_its_chats_again, images_are_offered_to_models_that_see]


def play(binary, program, checks, args, *flags):
    """One server and one browser of its own for a row of checks; the first failure ends it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, \
            served(binary, *flags) as address:
        browser = Browser(program, folder, args.page)
        try:
            page = Page(browser, address, args.shots)
            if checks is CHECKS:
                browser.open(address)
            for one in checks:
                begin = time.monotonic()
                try:
                    one(page)
                    check(not browser.problems, f"the page's errors: {browser.problems}")
                except AssertionError as error:
                    page.shot("failed")
                    print(f"FAILED {one.__name__}: {error}")
                    return False
                print(f"ok {one.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
        finally:
            browser.close()
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--shots", type=pathlib.Path)
    args = parser.parse_args()
    if args.page:
        args.page = "".join((args.page / part).read_text() for part in PARTS) + "</script>\n"
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        sys.exit(f"no browser found; wanted one of {', '.join(BROWSERS)}")
    if args.shots:
        args.shots.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("a-key-for-tests\n")
        keys.flush()
        held = play(args.binary, program, CHECKS, args, "--quiet")
        held &= play(args.binary, program, [wants_its_key], args, "--quiet",
                     "--api-key-file", keys.name)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
