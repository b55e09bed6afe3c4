"""How binding keys and arguments match messages: the patterns of topics, and the criteria of headers.

Exchanges of these types use it, and bindings between exchanges (`exchange.Onward`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

from qstore.broker.log.logs import log_of
from qstore.broker.model.arguments import FED_ARGUMENTS, MATCH
from qstore.broker.model.errors import InternalError, RoutingLimitError
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedArray, TypedMap, TypedValue

_LOG: Final = log_of("Model")

MAX_STEPS: Final = 20_000
"""Nodes that may be reached to route one message: some 5 ms of processor time. One pattern takes at most the product of
the numbers of its own words and the words of a key, which has up to 128. Thousands of usual ones, such as #.id.#, take
ten nodes, and 3,600 pairs of words (#.a.#.b) take 150.
"""

STEPS_PER_MESSAGE: Final = 30
"""Steps that take as long as moving a message does."""

FREE_STEPS: Final = 20
"""Uncounted steps of each match: a message may reach thousands of exchanges with harmless patterns."""

_SHOWN: Final = 60  # characters of a routing key in an error

_IGNORED: Final = "x-"
PRESENT: Final = ("NoneType", None)
"""The required value of a header that only has to be present."""


class Steps:
    """The steps that matching may take for one message.

    Attributes:
        left: steps left; negative when the limit is exceeded.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_STEPS


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
    """A set of topic patterns: finds those that match a routing key among very many.

    A pattern consists of words separated by dots; `*` matches one word, `#` any number of words, including none; all
    other words match themselves. A key is split in the same way, so that "" is one empty word and "a." is two words.

    The patterns form a tree with one word per level, and all of them are matched at once, as a nondeterministic
    automaton: word by word, with the set of all nodes that the words so far may lead to. A node below `#` stays in the
    set, because `#` matches any word. So the work for a key is bounded by its words times the nodes, and there is no
    backtracking, whatever the pattern: a chain of `#` costs no more than its length. In practice few nodes are reached,
    and the number of other patterns makes no difference. The children below a `#` are found by the words of the key,
    once for each `#`.

    Patterns can still be constructed so that a key reaches very many nodes with each of its words. So the steps for one
    message are limited (`Steps`), over all of its keys and all exchanges that it reaches: 20,000 patterns of 40 words,
    with `#`, `*` and the same word in them, would take a minute of processor time for a key of 127 words.

    Equivalent patterns share a node: "#.#" means "#", and "#.*" means "*.#". With the stars moved first, only a plain
    word follows `#` in the tree.

    Args:
        name: the exchange's, for errors.
    """

    __slots__ = ("_has_warned", "_name", "_root")

    def __init__(self, name: str = "") -> None:
        self._name, self._has_warned = name, False
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

    def match(self, key: str, steps: Steps | None = None) -> list[str]:
        """The patterns that match a routing key, each once, in no particular order.

        Args:
            key: the routing key.
            steps: those left for the message; None for the maximum.

        Raises:
            RoutingLimitError: matching takes more steps.
        """
        words = key.split(".")
        before = MAX_STEPS if steps is None else steps.left
        left = before + FREE_STEPS - len(words)
        found: list[str] = []
        reached = [self._root]
        below = _Below(words)
        left -= below.enter(reached, found, left)
        for word in words:
            after = below.take(word)
            left -= len(after) + len(reached)
            if left < 0:
                break
            for node in reached:
                exact = node.words.get(word)
                if exact is not None:
                    after.append(exact)
                if node.star is not None:
                    after.append(node.star)
            reached = after
            if not reached and not below.staying:
                break
            left -= below.enter(reached, found, left)
        else:
            left -= len(reached)
            for node in reached:
                found += node.patterns
        if steps is not None:
            steps.left = min(left, before)
        if left < 0:
            raise self.too_expensive(key)
        return found

    def too_expensive(self, key: str) -> RoutingLimitError:
        """The error for a message that takes too many steps; the first one is logged."""
        shown = key if len(key) <= _SHOWN else f"{key[:_SHOWN]}..."
        text = (
            f'exchange "{self._name}": matching routing key "{shown}" takes more than {MAX_STEPS:,} '
            "steps; bind fewer keys that mix # and *"
        )
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("A message is refused: %s. Later refusals are not logged", text)
        return RoutingLimitError(text)


class _Below:
    """The nodes below each `#` that a key has reached, whose words so far the `#` may match.

    Args:
        words: the words of the key.

    Attributes:
        staying: the nodes, in the order in which they were reached.
    """

    __slots__ = ("_again", "_once", "_words", "staying")

    def __init__(self, words: list[str]) -> None:
        self._words = dict.fromkeys(words)
        self.staying: dict[_Node, None] = {}
        self._once: dict[str, list[_Node]] = {}  # word -> children that only lead to another `#`: once is enough
        self._again: dict[str, list[_Node]] = {}  # word -> the other children

    def enter(self, reached: list[_Node], found: list[str], most: int) -> int:
        """Enter the nodes below a further `#`. A pattern that ends there has matched, whatever follows.

        Returns:
            The steps taken; if these exceed `most`, it has stopped early.
        """
        steps, words = 0, self._words
        for node in reached:
            rest = node.rest
            if rest is None or rest in self.staying:
                continue
            self.staying[rest] = None
            found += rest.patterns
            children = rest.words
            steps += 1 + min(len(children), len(words))
            if steps > most:
                break
            for word in children if len(children) < len(words) else words:
                child = children.get(word)
                if child is not None and word in words:
                    is_done = not (child.patterns or child.words or child.star)
                    (self._once if is_done else self._again).setdefault(word, []).append(child)
        return steps

    def take(self, word: str) -> list[_Node]:
        """The nodes that a word leads to."""
        return [*self._once.pop(word, ()), *self._again.get(word, ())]


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


class Criteria(NamedTuple):
    """The criteria of a headers exchange's binding. Equal if they match the same messages.

    They are in the binding's arguments: `x-match` is "all" or "any", and every other name that does not begin with "x-"
    is that of a required header, with the same value; a void value only requires the header to be present. With "any"
    one header is enough, so a binding without any never matches; with "all" and none, it matches everything.

    Source: AMQP 0-10, class exchange, type headers; `x-match` is required as in qpidd, which answers internal-error.

    Attributes:
        is_all: whether all headers must match, or one is enough.
        headers: name -> value in the form of `comparable`.
    """

    is_all: bool
    headers: Mapping[str, Hashable]

    def match(self, headers: Mapping[str, Hashable]) -> bool:
        """Whether a message with these headers matches; their values are in the form of `comparable`."""
        for name, wanted in self.headers.items():
            found = headers.get(name)
            is_match = found is not None and wanted in (PRESENT, found)
            if is_match is not self.is_all:
                return is_match
        return self.is_all


def parse_criteria(arguments: TypedMap) -> Criteria:
    """The criteria of a binding with these arguments.

    Raises:
        InternalError: `x-match` is missing, or neither "all" nor "any".
    """
    values = dict(arguments.entries)
    match = comparable(values.pop(MATCH, None))
    if match not in (comparable("all"), comparable("any")):
        raise InternalError(f'a binding to a headers exchange needs the argument {MATCH} with value "all" or "any"')
    for name in FED_ARGUMENTS:
        values.pop(name, None)
    headers = {name: comparable(typed) for name, typed in values.items() if not name.startswith(_IGNORED)}
    return Criteria(match == comparable("all"), headers)


def comparable(value: Any) -> Hashable:
    """A hashable form of a value that is equal for equal values: they are compared by meaning, not by encoding.

    integers of any width             by number; never equal to a boolean, a float or a string
    float, double                     by number
    strings of any encoding, vbin*    as strings: clients send strings as either
    void                              matches any value
    map, list, array                  item by item
    all others                        by type and value
    """
    match value:
        case TypedValue():
            return comparable(value.value)
        case TypedArray():
            return comparable(value.values)
        case str():
            return "text", value.encode("utf-8", "surrogatepass")
        case bytes():
            return "text", value
        case TypedMap():
            return comparable(dict(value.entries))
        case Mapping():
            return "map", frozenset((name, comparable(item)) for name, item in value.items())
        case list() | tuple():
            return "list", tuple(map(comparable, value))
    return type(value).__name__, value
