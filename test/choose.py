# SPDX-License-Identifier: Apache-2.0
"""Which test program a person means: test_sock, unit/test_sock, sock, test/unit/test_sock.c."""
import difflib
import pathlib


def names_of(label):
    """Every way to say it."""
    kind, _, stem = label.partition("/")
    short = stem.removeprefix("test_")
    return {f"{kind}/{stem}", stem, f"{kind}/{short}", short}


def choose(programs, name, san=""):
    """(the program, or None, and then a text that says what else there is); programs: those that run under san"""
    given = name.removeprefix("./").removeprefix("test/")
    if pathlib.PurePath(given).suffix in (".c", ".py", ".sh"):
        given = given.rsplit(".", 1)[0]
    labels = {p.label.partition("@")[0]: p for p in programs}
    hits = [label for label in labels if given in names_of(label)]
    if len(hits) == 1:
        return labels[hits[0]], ""
    if hits:
        return None, f"{name} may be any of {', '.join(hits)}"
    words = {way: label for label in labels for way in names_of(label)}
    near = [label for label in labels if given and given in label]
    near += [words[way] for way in difflib.get_close_matches(given, words, n=8, cutoff=0.6)]
    near = list(dict.fromkeys(near))[:8]
    return None, f"no test{san and ' that runs under '}{san} is called {name!r}; " + (
        f"near are {', '.join(near)}" if near else "python3 test/run.py --list shows all")
