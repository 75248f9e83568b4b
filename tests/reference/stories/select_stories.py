"""Keeps the stories that read well enough to learn from. A story a line, tabs for line breaks.

    select_stories.py sampled.txt > kept.txt

A small model that is sampled makes up words and forgets quotes. Kept is a story
- of 150 to 1,200 characters that ends a sentence,
- whose every word occurs in at least 12 of the stories,
- whose quotes open and close, in each paragraph,
- in which no word follows itself, and no sentence comes twice.
"""

import argparse
import collections
import re

from tokenizer import read_stories

LEAST_STORIES = 12
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
SENTENCE = re.compile(r"[^.!?]{20,}[.!?]")


def words(story):
    return [word.lower() for word in WORD.findall(story)]


def reads_well(story, n_stories):
    """n_stories: in how many stories each word occurs."""
    spoken = words(story)
    sentences = SENTENCE.findall(story)
    return (
        150 <= len(story) <= 1200
        and story.rstrip('"').endswith((".", "!", "?"))
        and story.isascii()
        and all(n_stories[word] >= LEAST_STORIES for word in spoken)
        and all(paragraph.count('"') % 2 == 0 for paragraph in story.split("\n"))
        and all(a != b or a in ("very", "so", "had", "ha") for a, b in zip(spoken, spoken[1:]))
        and len(set(sentences)) == len(sentences)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stories", nargs="+", help="text files, a story a line")
    stories = list(read_stories(parser.parse_args().stories))
    n_stories = collections.Counter(word for story in stories for word in set(words(story)))
    for story in stories:
        if reads_well(story, n_stories):
            print(story.replace("\n", "\t"))


if __name__ == "__main__":
    main()
