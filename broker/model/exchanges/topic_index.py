"""Topic patterns, indexed: which of very many match a routing key.

A pattern is words with dots between them; `*` stands for one word, `#` for any number of them, none included; all
other words for themselves. A key is split in the same way, so that "" is one empty word and "a." is two words.

The patterns stand in a tree, a word to a level, and all of them are matched at once, as an automaton is run: word by
word, with the set of all places in the tree that the words so far may lead to. A place below `#` stays in the set for
good, since `#` takes any word. So the work for a key is bounded by its words times the places, and there is nothing to
go back to, whatever the pattern: a chain of `#` costs no more than its length. In practice few places are reached, and
how many other patterns there are makes no difference.

Patterns that mean the same share a place: "#.#" means "#", and "#.*" means "*.#". With the stars moved before, nothing
but a plain word follows `#` in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable


class _Place:
    """A place in the tree: the patterns that end here, and what the next word leads to."""

    __slots__ = ("patterns", "rest", "star", "words")

    def __init__(self) -> None:
        self.patterns: tuple[str, ...] = ()
        self.words: dict[str, _Place] = {}
        self.star: _Place | None = None
        self.rest: _Place | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.patterns or self.words or self.star or self.rest)

    def step(self, word: str) -> _Place | None:
        """Where a word of a pattern leads to."""
        return self.star if word == "*" else self.rest if word == "#" else self.words.get(word)

    def grow(self, word: str) -> _Place:
        """As `step`, to a place that is made if need be."""
        place = self.step(word)
        if place is None:
            place = _Place()
            if word == "*":
                self.star = place
            elif word == "#":
                self.rest = place
            else:
                self.words[word] = place
        return place

    def prune(self, word: str) -> None:
        """Cut off what a word of a pattern leads to."""
        if word == "*":
            self.star = None
        elif word == "#":
            self.rest = None
        else:
            del self.words[word]


class TopicIndex:
    """A set of patterns."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Place()

    def add(self, pattern: str) -> None:
        """Add a pattern that is not there."""
        place = self._root
        for word in _normal(pattern.split(".")):
            place = place.grow(word)
        assert pattern not in place.patterns
        place.patterns += (pattern,)

    def remove(self, pattern: str) -> None:
        """Remove a pattern that is there."""
        words = _normal(pattern.split("."))
        path = [self._root]
        for word in words:
            place = path[-1].step(word)
            assert place is not None
            path.append(place)
        path[-1].patterns = tuple(each for each in path[-1].patterns if each != pattern)
        for word in reversed(words):
            if not path.pop().is_empty:
                return
            path[-1].prune(word)

    def match(self, key: str) -> list[str]:
        """The patterns that match a routing key, each once, in no particular order."""
        found: list[str] = []
        reached = [self._root]
        staying: dict[_Place, None] = {}  # places after a `#`, in the order in which they were reached
        _enter_rests(reached, staying, found)
        for word in key.split("."):
            after = [place.words[word] for place in staying if word in place.words]
            for place in reached:
                exact = place.words.get(word)
                if exact is not None:
                    after.append(exact)
                if place.star is not None:
                    after.append(place.star)
            reached = after
            if not reached and not staying:
                return found
            _enter_rests(reached, staying, found)
        for place in reached:
            found += place.patterns
        return found


def _enter_rests(reached: list[_Place], staying: dict[_Place, None], found: list[str]) -> None:
    """Go on to the places after a `#`. A pattern that ends there has matched, whatever follows."""
    for place in reached:
        rest = place.rest
        if rest is not None and rest not in staying:
            staying[rest] = None
            found += rest.patterns


def _normal(words: Iterable[str]) -> list[str]:
    """The words of a pattern, each run of stars and hashes as its stars and at most one hash after them."""
    normal: list[str] = []
    has_rest = False
    for word in words:
        if word == "#":
            has_rest = True
            continue
        if has_rest and word != "*":
            normal.append("#")
            has_rest = False
        normal.append(word)
    return [*normal, "#"] if has_rest else normal
