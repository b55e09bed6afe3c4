"""An index of topic patterns: finds those that match a routing key among very many.

A pattern consists of words separated by dots; `*` matches one word, `#` any number of words, including none; all other
words match themselves. A key is split in the same way, so that "" is one empty word and "a." is two words.

The patterns form a tree with one word per level, and all of them are matched at once, as a nondeterministic automaton:
word by word, with the set of all nodes that the words so far may lead to. A node below `#` stays in the set, because
`#` matches any word. So the work for a key is bounded by its words times the nodes, and there is no backtracking,
whatever the pattern: a chain of `#` costs no more than its length. In practice few nodes are reached, and the number of
other patterns makes no difference.

Equivalent patterns share a node: "#.#" means "#", and "#.*" means "*.#". With the stars moved first, only a plain word
follows `#` in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable


class _Node:
    """A node of the tree: the patterns that end here, and its children."""

    __slots__ = ("patterns", "rest", "star", "words")

    def __init__(self) -> None:
        self.patterns: tuple[str, ...] = ()
        self.words: dict[str, _Node] = {}
        self.star: _Node | None = None
        self.rest: _Node | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.patterns or self.words or self.star or self.rest)

    def step(self, word: str) -> _Node | None:
        """The child for a word of a pattern."""
        return self.star if word == "*" else self.rest if word == "#" else self.words.get(word)

    def grow(self, word: str) -> _Node:
        """As `step`; creates a missing child."""
        node = self.step(word)
        if node is None:
            node = _Node()
            if word == "*":
                self.star = node
            elif word == "#":
                self.rest = node
            else:
                self.words[word] = node
        return node

    def prune(self, word: str) -> None:
        """Remove the child for a word of a pattern."""
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
        self._root = _Node()

    def add(self, pattern: str) -> None:
        """Add a pattern that is not in the set."""
        node = self._root
        for word in _normal(pattern.split(".")):
            node = node.grow(word)
        assert pattern not in node.patterns
        node.patterns += (pattern,)

    def remove(self, pattern: str) -> None:
        """Remove a pattern that is in the set."""
        words = _normal(pattern.split("."))
        path = [self._root]
        for word in words:
            node = path[-1].step(word)
            assert node is not None
            path.append(node)
        path[-1].patterns = tuple(each for each in path[-1].patterns if each != pattern)
        for word in reversed(words):
            if not path.pop().is_empty:
                return
            path[-1].prune(word)

    def match(self, key: str) -> list[str]:
        """The patterns that match a routing key, each once, in no particular order."""
        found: list[str] = []
        reached = [self._root]
        staying: dict[_Node, None] = {}  # nodes below a `#`, in the order in which they were reached
        _enter_rests(reached, staying, found)
        for word in key.split("."):
            after = [node.words[word] for node in staying if word in node.words]
            for node in reached:
                exact = node.words.get(word)
                if exact is not None:
                    after.append(exact)
                if node.star is not None:
                    after.append(node.star)
            reached = after
            if not reached and not staying:
                return found
            _enter_rests(reached, staying, found)
        for node in reached:
            found += node.patterns
        return found


def _enter_rests(reached: list[_Node], staying: dict[_Node, None], found: list[str]) -> None:
    """Enter the nodes below a `#`. A pattern that ends there has matched, whatever follows."""
    for node in reached:
        rest = node.rest
        if rest is not None and rest not in staying:
            staying[rest] = None
            found += rest.patterns


def _normal(words: Iterable[str]) -> list[str]:
    """The words of a pattern, with each run of stars and hashes as its stars followed by at most one hash."""
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
