"""A byte-level BPE tokenizer learned from text, written as Hugging Face's tokenizer.json.

    tokenizer.py --vocab-size 1536 stories.txt ... > tokenizer.json

Byte-pair encoding (Sennrich et al., 2016) over GPT-2's words: a word takes the space before it
along, and each byte is a letter of GPT-2's printable alphabet. Merges are the most frequent pair,
again and again; of equals, the first in byte order. Ids: 0 <unk>, 1 <s>, 2 </s>, 256 bytes, then
the merges. The same text always gives the same bytes.
"""

import argparse
import collections
import json
import re
import sys

# GPT-2's split, for the ASCII text that this tokenizer learns from.
WORDS = re.compile(
    r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<s>", "</s>"]
BOS, EOS = 1, 2


def byte_letters():
    """GPT-2's alphabet: a printable character for each of the 256 bytes, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, spare = {}, 256
    for byte in range(256):
        if byte in printable:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(spare)
            spare += 1
    return letters


LETTERS = byte_letters()


def spell(word):
    return [LETTERS[byte] for byte in word.encode()]


def learn(words, n_merges):
    """The merges, as pairs of strings. words: how often each word occurs."""
    spelled = {word: spell(word) for word in words}
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for word, symbols in spelled.items():
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] += words[word]
            where[pair].add(word)
    merges = []
    while len(merges) < n_merges and pairs:
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word in sorted(where.pop(best)):
            before = spelled[word]
            after = apply(before, best)
            for pair in zip(before, before[1:]):
                pairs[pair] -= words[word]
                if pairs[pair] <= 0:
                    del pairs[pair]
            for pair in zip(after, after[1:]):
                pairs[pair] += words[word]
                where[pair].add(word)
            spelled[word] = after
        pairs.pop(best, None)
    return merges


def apply(symbols, pair):
    """The symbols with every occurrence of the pair joined, from the left."""
    joined, i = [], 0
    while i < len(symbols):
        if tuple(symbols[i : i + 2]) == pair:
            joined.append(pair[0] + pair[1])
            i += 2
        else:
            joined.append(symbols[i])
            i += 1
    return joined


def describe(merges):
    """The contents of tokenizer.json."""
    symbols = SPECIAL + [LETTERS[byte] for byte in sorted(LETTERS, key=LETTERS.get)]
    symbols += [left + right for left, right in merges]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, token in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
        },
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {symbol: i for i, symbol in enumerate(symbols)},
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


class Tokenizer:
    """Encodes ASCII text as a tokenizer.json of this form says."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            model = json.load(file)["model"]
        self.vocab = model["vocab"]
        self.ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(model["merges"])}
        self.size = len(self.vocab)
        self.known = {}

    def word(self, word):
        if word not in self.known:
            symbols = spell(word)
            while len(symbols) > 1:
                pairs = set(zip(symbols, symbols[1:]))
                best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
                if best not in self.ranks:
                    break
                symbols = apply(symbols, best)
            self.known[word] = [self.vocab[symbol] for symbol in symbols]
        return self.known[word]

    def encode(self, text):
        """The ids of a text, without <s>."""
        return [i for word in WORDS.findall(text) for i in self.word(word)]


def read_stories(paths):
    """The stories of files with one in a line, tabs for line breaks."""
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\n").replace("\t", "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vocab-size", type=int, default=1536)
    parser.add_argument("stories", nargs="+", help="text files, a story a line")
    arguments = parser.parse_args()
    words = collections.Counter()
    for text in read_stories(arguments.stories):
        words.update(WORDS.findall(text))
    merges = learn(words, arguments.vocab_size - len(SPECIAL) - 256)
    json.dump(describe(merges), sys.stdout, indent=1, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
