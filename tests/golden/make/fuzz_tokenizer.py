#!/usr/bin/env python3
"""Cuts a published tokenizer.json to 256 bytes, the first merges and all added tokens, and one marker more.

usage: fuzz_tokenizer.py models/nano/tokenizer.json fuzz/seeds/tokenizer.json
"""

import json
import sys

MERGES = 80
# A marker of V4.1 that the older vocabularies lack.
EXTRA = "<｜System｜>"


def pair(merge):
    return merge.split(" ") if isinstance(merge, str) else merge


def main(source, target):
    whole = json.load(open(source, encoding="utf-8"))
    model = whole["model"]
    merges = model["merges"][:MERGES]
    added = whole["added_tokens"]
    added.append(dict(added[-1], content=EXTRA))
    markers = {token["content"] for token in added}
    letters = [t for t in model["vocab"] if len(t) == 1 and t not in markers]
    made = ["".join(pair(merge)) for merge in merges]
    texts = list(dict.fromkeys(letters + made))
    model["vocab"] = {text: at for at, text in enumerate(texts)}
    model["merges"] = merges
    for at, token in enumerate(added):
        token["id"] = len(texts) + at
    whole.pop("post_processor", None)
    whole.pop("decoder", None)
    with open(target, "w", encoding="utf-8") as out:
        json.dump(whole, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")


main(*sys.argv[1:])
