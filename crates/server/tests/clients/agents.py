#!/usr/bin/env python3
"""Runs coding agents against `ironstar serve` with prepared answers.

    python3 agents.py IRONSTAR PACKAGES [--keep FOLDER] [NAME..]

PACKAGES is a folder with `node_modules` of agents/package.json. Each agent gets a home folder of
its own, a folder with a file, and one question; the server makes it call its own tool to read the
file, and answers once the file's text has come back. A row of a table is printed for each; a loop
that does not end with the answer, or a second request that reuses nothing, ends the run with 1.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SECRET = "heron-4711"
ANSWER = "The note speaks of a bird."
QUESTION = "Please use your tool to read note.txt here, and say what it speaks of."
CONTEXT = 131072


def invoke(name, **parameters):
    lines = [f'<｜DSML｜parameter name="{key}" string="true">{value}</｜DSML｜parameter>\n'
             for key, value in parameters.items()]
    return (f'I look.</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{name}">\n'
            f'{"".join(lines)}</｜DSML｜invoke>\n</｜DSML｜tool_calls>')


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def pi(url, home, note):
    model = {"id": "ironstar", "name": "ironstar", "reasoning": True, "input": ["text"],
             "contextWindow": CONTEXT, "maxTokens": 8192,
             "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
             "compat": {"thinkingFormat": "deepseek"}}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none",
                "models": [model]}
    write(home / ".pi/agent/models.json", json.dumps({"providers": {"ironstar": provider}}))
    # One try: a fault must not be hidden by the next.
    write(home / ".pi/agent/settings.json", json.dumps({"retry": {"enabled": False}}))
    command = ["pi", "--provider", "ironstar", "--model", "ironstar", "-p", QUESTION]
    return command, {}, invoke("read", path=note)


def claude(url, home, note):
    del home
    variables = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none", "CI": "1",
                 "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    return ["claude", "-p", QUESTION], variables, invoke("Read", file_path=note)


def codex(url, home, note):
    write(home / ".codex/config.toml",
          'model = "ironstar"\nmodel_provider = "ironstar"\n[model_providers.ironstar]\n'
          f'name = "ironstar"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
          'request_max_retries = 0\nstream_max_retries = 0\n')
    command = ["codex", "exec", "--skip-git-repo-check",
               "--dangerously-bypass-approvals-and-sandbox", QUESTION]
    return command, {}, invoke("exec_command", cmd=f"cat {note}")


def opencode(url, home, note):
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "ironstar",
                "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
                "models": {"ironstar": {"name": "ironstar",
                                        "limit": {"context": CONTEXT, "output": 8192}}}}
    config = {"$schema": "https://opencode.ai/config.json", "autoupdate": False,
              "model": "ironstar/ironstar", "provider": {"ironstar": provider}}
    write(home / ".config/opencode/opencode.json", json.dumps(config))
    return ["opencode", "run", QUESTION], {}, invoke("read", filePath=note)


AGENTS = {
    "pi": (pi, "@mariozechner/pi-coding-agent"),
    "claude": (claude, "@anthropic-ai/claude-code"),
    "codex": (codex, "@openai/codex"),
    "opencode": (opencode, "opencode-ai"),
}
# A loop of a few seconds; the slowest compiles itself first, and a machine may be busy.
LIMIT_S = 600


def serve(binary, play, log):
    """A server on a free port, and its address."""
    process = subprocess.Popen(
        [binary, "serve", "--port", "0", "--scripted", play], stderr=open(log, "w"))
    for _ in range(3000):
        found = re.search(r" at (http://\S+)", log.read_text())
        if found:
            return process, found.group(1)
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"the server does not start: {log.read_text()}")


def run(command, folder, variables):
    """Output and exit code of a command; with all its children it is gone afterwards."""
    process = subprocess.Popen(command, cwd=folder, env=variables, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
        return output.decode(errors="replace"), process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return output.decode(errors="replace"), f"killed after {LIMIT_S} s"


def check(name, arguments, scratch):
    make, package = AGENTS[name]
    packages = pathlib.Path(arguments.packages).resolve()
    home, folder = scratch / name / "home", scratch / name / "work"
    home.mkdir(parents=True)
    folder.mkdir()
    note = folder / "note.txt"
    note.write_text(f"A {SECRET} stands in the reeds.\n")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    # The script is made before the address is known: only the call depends on the agent.
    _, _, call = make("http://none", scratch / name / "unused", str(note))
    play = scratch / name / "play.json"
    log = scratch / name / "server.log"
    replies = [
        {"when": [SECRET], "text": [f"It came back.</think>{ANSWER}"]},
        {"last": ["use your tool"], "when": ["DSML"], "text": [call]},
    ]
    play.write_text(json.dumps({"context": CONTEXT, "replies": replies,
                                "other": ["</think>A note"]}))
    log.write_text("")
    server, url = serve(arguments.binary, play, log)
    try:
        command, more, _ = make(url, home, str(note))
        command[0] = str(packages / "node_modules/.bin" / command[0])
        kept = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        variables = {**kept, "HOME": str(home), "NO_COLOR": "1", "TERM": "dumb",
                     "NO_PROXY": "127.0.0.1", **more}
        begun = time.monotonic()
        output, code = run(command, folder, variables)
        seconds = time.monotonic() - begun
    finally:
        server.terminate()
        server.wait(timeout=120)
    lines = re.findall(r"prompt (\d+) cached (\d+) answer", log.read_text())
    requests = [(int(prompt), int(cached)) for prompt, cached in lines]
    reused = max((cached for prompt, cached in requests if prompt), default=0)
    longest = max((prompt for prompt, _ in requests), default=0)
    manifest = json.loads((packages / "node_modules" / package / "package.json").read_text())
    version = manifest["version"]
    good = code == 0 and ANSWER in output and reused > longest * 0.9 and len(requests) < 8
    result = "ok" if good else "FAILED"
    print(f"| {name} | {package} {version} | {result}, exit {code} | {seconds:.0f} s "
          f"| {len(requests)} requests | {reused:,} of {longest:,} reused |", flush=True)
    if not good:
        print(f"--- {name} said:\n{output[-4000:]}\n--- the server:\n{log.read_text()[-3000:]}")
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("packages")
    parser.add_argument("names", nargs="*", choices=[*AGENTS, []], default=[])
    parser.add_argument("--keep", help="a folder in which homes and logs are left")
    arguments = parser.parse_args()
    scratch = pathlib.Path(arguments.keep or tempfile.mkdtemp(prefix="ironstar-agents-"))
    try:
        results = [check(name, arguments, scratch) for name in arguments.names or AGENTS]
    finally:
        if not arguments.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(0 if all(results) else 1)


main()
