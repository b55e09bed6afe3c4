"""XQuery for the bindings of XML exchanges: what a query may contain, and what its evaluation may cost.

A query has a prolog and an expression, whose effective boolean value decides:

    declare variable $name external;          the header of a message with that name; `as TYPE` may follow the name
    declare variable $name := EXPRESSION;     a variable
    declare namespace p = "...";              a prefix; `declare default element namespace "...";` likewise

The expression is one of XPath 3.1, which `elementpath` evaluates, with XQuery's FLWOR: `for`, `let` and `where` clauses
in any order, and `return`; not `order by`, `group by` and constructors of elements. Its context item is the document in
the content of the message, which is parsed only if the query looks at it. A query that fails matches nothing: because
the content is not well-formed XML, because a variable has no value or the wrong type.

Queries and documents come from peers, so everything is limited. A query is refused when it is bound if it is too long,
or if it has anything but the operators and functions in `_ALLOWED`: none reads files, the environment or other
documents, compiles expressions, or joins strings, and so no value is much larger than the query and the document; or if
it has more than `MAX_PRODUCTS` multiplications. A document may not declare entities, and has at most `MAX_DEPTH`
levels, `MAX_NODES` elements and attributes, and `MAX_BYTES`. An evaluation takes at most a number of calls of
functions, which a profiling hook counts: that is deterministic, and covers every loop in the library. What exceeds
these is an error (`TooExpensiveError`), not "no match".

Sources: qpidd, XmlExchange.cpp (what a query sees); MRG 2 Messaging User Guide, 2.1.6; XQuery 3.1, 3.12 and 4.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from cProfile import Profile
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from inspect import CO_GENERATOR
from itertools import islice, pairwise
from types import FrameType
from typing import Any, Final

from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import TypedMap, TypedValue

MAX_QUERY: Final = 4096
"""Characters of a query: reading them takes up to 10 ms, and 0.7 MB of memory."""

SHARED_QUERIES: Final = 32
"""The latest queries, of which further bindings use the same object."""

MAX_PRODUCTS: Final = 8
"""Multiplications in a query: integers are exact, and each can double the number of digits."""

MAX_BYTES: Final = 256 * 1024
MAX_NODES: Final = 2_000
MAX_DEPTH: Final = 64

_MAX_DIGITS: Final = 18
_WHERE: Final = "$qstore.where"


class QueryError(Exception):
    """A query is not valid, or not supported."""


class TooExpensiveError(Exception):
    """A document is too large, or an evaluation takes too long."""


class _StopError(BaseException):
    """Ends an evaluation; not an Exception, so that the library does not handle it."""


def is_available() -> bool:
    """Whether the library is installed: `qstore[xml]`."""
    return find_spec("elementpath") is not None


def load() -> None:
    """Import the library, which must be installed: 0.1 to 0.25 s the first time, so not in the event loop."""
    _library()


class _Library(NamedTuple):
    """What is used of `elementpath`. The parser does not evaluate anything: `parse` is that of its base class."""

    Parser: Any
    Context: Any
    Error: type[Exception]
    parse: Any
    tree: Any
    builder: Any


@cache
def _library() -> _Library:
    """The library, which is optional; what it caches is there afterwards."""
    from xml.etree.ElementTree import ElementTree, TreeBuilder

    from elementpath import ElementPathError, XPathContext, get_node_tree
    from elementpath.tdop import Parser
    from elementpath.xpath3 import XPath3Parser

    builder = TreeBuilder()
    for name, attributes in (("a", {}), ("b", {"c": "1"})):
        builder.start(name, attributes)
    builder.data("2")
    builder.end("b")
    builder.end("a")
    root = builder.close()
    parser, tree = XPath3Parser(), get_node_tree(ElementTree(root))
    for text in (
        "./a/b = '2' and ./a/b + 1 > 2 and ./a/b mod 2 = 0 or $e = 1",
        "some $f in //b[@c] satisfies $f - 1 = 1.5",
    ):
        parsed = Parser.parse(parser, text)
        parsed.boolean_value(list(parsed.select(XPathContext(tree, variables={"e": 1.5}))))
    return _Library(
        XPath3Parser,
        XPathContext,
        ElementPathError,
        Parser.parse,
        lambda root: get_node_tree(ElementTree(root)),
        TreeBuilder,
    )


# ---- what a query may contain ----

_AXES: Final = frozenset(
    (
        "child", "descendant", "descendant-or-self", "self", "parent", "ancestor", "ancestor-or-self", "attribute",
        "following", "following-sibling", "preceding", "preceding-sibling",
    )
)  # fmt: skip
_PATHS: Final = _AXES | {"/", "//", ".", "..", "(name)", "*", "@", "node", "text", "comment", "element", "root"}
"""What looks at the document: in a query without any of it, the content may be anything."""

_OF_CONTEXT: Final = frozenset(
    ("string", "string-length", "normalize-space", "number", "name", "local-name", "namespace-uri", "data")
)
"""Functions that look at the context item if they have no argument."""

_FUNCTIONS: Final = _OF_CONTEXT | frozenset(
    (
        "true", "false", "not", "boolean", "count", "exists", "empty", "contains", "starts-with", "ends-with",
        "upper-case", "lower-case", "sum", "avg", "min", "max", "position", "last", "substring", "substring-before",
        "substring-after", "translate", "round", "floor", "ceiling", "abs", "root", "compare", "exactly-one",
        "zero-or-one", "node", "text", "comment", "element", "attribute", "item", "double", "float", "decimal", "date",
        "dateTime", "time",
    )
)  # fmt: skip
_ALLOWED: Final = _PATHS | _FUNCTIONS | frozenset(
    (
        "(", "[", ",", "$", ":", "and", "or", "=", "!=", "<", "<=", ">", ">=", "eq", "ne", "lt", "le", "gt", "ge", "is",
        "+", "-", "div", "idiv", "mod", "|", "union", "intersect", "except", "if", "for", "let", "some", "every",
        "instance", "castable", "(integer)", "(decimal)", "(float)", "(string)",
    )
)  # fmt: skip

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+) | (?P<string>"(?:[^"]|"")*"|'(?:[^']|'')*') | (?P<variable>\$\s*[\w.:-]+)
    | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?) | (?P<name>[^\W\d][\w.-]*(?::[^\W\d][\w.-]*)?)
    | (?P<symbol>:=|::|//|\.\.|<=|>=|!=|<<|>>|\|\||=>|.)""",
    re.VERBOSE | re.DOTALL,
)

_DECLARATION: Final = re.compile(
    r"""\s* (?: xquery \s+ version \s+ ("[^"]*"|'[^']*') \s* ;
    | declare \s+ (?: variable \s+ \$(?P<variable>[\w.-]+) (?: \s+ as \s+ (?P<type>[\w:]+)[?]? )? \s+ external \s* ;
        | variable \s+ \$(?P<bound>[\w.-]+) (?: \s+ as \s+ [\w:]+[?]? )? \s* := (?P<value>(?:"[^"]*"|'[^']*'|[^;"'])*) ;
        | namespace \s+ (?P<prefix>[\w.-]+) \s* = \s* (?P<uri>"[^"]*"|'[^']*') \s* ;
        | default \s+ element \s+ namespace \s+ (?P<default>"[^"]*"|'[^']*') \s* ; ) )""",
    re.VERBOSE,
)

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "xs:string": (str,), "xs:integer": (int,), "xs:int": (int,), "xs:long": (int,), "xs:boolean": (int,),
    "xs:double": (int, float), "xs:float": (int, float), "xs:decimal": (int,), "xs:anyAtomicType": (str, int, float),
}  # fmt: skip


class Prolog(NamedTuple):
    """What a query declares.

    Attributes:
        external: variable -> its type; empty for any.
        namespaces: prefix -> namespace; the empty prefix is the default one of elements.
        text: the expression, with other variables as `let`.
    """

    external: Mapping[str, str]
    namespaces: Mapping[str, str]
    text: str


def _without_comments(text: str) -> str:
    """A query without comments, which may be nested."""
    kept, depth, quote, at = [], 0, "", 0
    while at < len(text):
        two, one = text[at : at + 2], text[at]
        if not quote and two == "(:":
            depth, at = depth + 1, at + 2
        elif not quote and depth and two == ":)":
            depth, at = depth - 1, at + 2
            kept.append(" ")
        else:
            if not depth:
                kept.append(one)
                quote = "" if quote == one else quote or (one if one in "\"'" else "")
            at += 1
    if depth:
        raise QueryError("a comment does not end")
    return "".join(kept)


def _read_prolog(text: str) -> Prolog:
    external: dict[str, str] = {}
    namespaces: dict[str, str] = {}
    lets: list[str] = []
    at = 0
    while (found := _DECLARATION.match(text, at)) is not None:
        at = found.end()
        if found["variable"]:
            wanted = found["type"] or ""
            if wanted and wanted not in _TYPES:
                raise QueryError(f"variable ${found['variable']} is of type {wanted}, which no header has")
            external[found["variable"]] = wanted
        elif found["bound"]:
            lets.append(f"let ${found['bound']} := ({_flat(found['value'])}) return ")
        elif found["prefix"]:
            namespaces[found["prefix"]] = found["uri"][1:-1]
        elif found["default"]:
            namespaces[""] = found["default"][1:-1]
    return Prolog(external, namespaces, "".join(lets) + _flat(text[at:]))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for found in _TOKEN.finditer(text):
        yield found.lastgroup or "", found[0]


_BETWEEN: Final = frozenset(
    (
        "return", "then", "else", "in", "satisfies", "and", "or", "eq", "ne", "lt", "le", "gt", "ge", "is", "div",
        "idiv", "mod", "union", "intersect", "except", "to", "where",
    )
)  # fmt: skip
"""Names after which an operand follows, and not a clause."""


def _flat(text: str) -> str:
    """An expression with each FLWOR as nested `for` and `let` of XPath, where only one clause precedes `return`.

    A clause that follows another one is the first one's result, and a `where` is a `for` over one item, or none.
    """
    tokens = list(_tokens(text))
    written: list[str] = []
    depth = 0
    open_where: list[int] = []  # depths of brackets at which a `where` has begun
    before = ("symbol", "(")
    following = [each for each in tokens if each[0] != "space"]
    place = 0
    for group, word in tokens:
        if group == "space":
            written.append(word)
            continue
        place += 1
        after = following[place][0] if place < len(following) else ""
        is_clause = group == "name" and word in ("for", "let") and after == "variable"
        is_after_operand = before[0] in ("string", "variable", "number") or before[1] in (")", "]", ".", "..", "*")
        is_after_operand = is_after_operand or (before[0] == "name" and before[1] not in _BETWEEN)
        is_where = group == "name" and word == "where" and is_after_operand
        if group == "name" and is_after_operand and word in ("order", "group", "stable", "window"):
            raise QueryError(f"'{word}' is not supported")
        if (is_clause and is_after_operand) or is_where or (group == "name" and word == "return" and is_after_operand):
            if open_where and open_where[-1] == depth:
                open_where.pop()
                written.append(" ) then 1 else ()) ")
            if word != "return":
                written.append(" return ")
        if is_where:
            open_where.append(depth)
            written.append(f"for {_WHERE} in (if (")
        else:
            written.append(word)
        depth += (word in ("(", "[")) - (word in (")", "]"))
        before = group, word
    if open_where:
        raise QueryError("a 'where' has no 'return'")
    return "".join(written)


# ---- documents ----


class Document:
    """The content of a message as XML, parsed on demand.

    Args:
        content: its bytes; or text, whatever encoding it declares.
    """

    def __init__(self, content: bytes | str) -> None:
        self._content = content

    @cached_property
    def tree(self) -> Any:
        """The tree for the library; None if it is not well-formed, or declares entities. Raises TooExpensiveError."""
        if len(self._content) > MAX_BYTES:
            raise TooExpensiveError(f"the content has more than {MAX_BYTES >> 10} KiB")
        try:
            root = _Reader().read(self._content)
        except (_XmlError, ValueError, LookupError):
            return None
        return _library().tree(root)


class _XmlError(Exception):
    """A document is not well-formed, or declares an entity."""


class _Reader:
    """Builds the tree of one document."""

    def __init__(self) -> None:
        self._builder = _library().builder()
        self._depth = self._nodes = 0

    def read(self, content: bytes | str) -> Any:
        """The root element. Raises _XmlError or TooExpensiveError."""
        from xml.parsers import expat

        parser = expat.ParserCreate(namespace_separator="}")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._builder.data
        parser.EntityDeclHandler = self._refuse
        try:
            parser.Parse(content, True)
        except expat.ExpatError as error:
            raise _XmlError from error
        return self._builder.close()

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._nodes += 1 + len(attributes)
        if self._depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise TooExpensiveError(
                f"the content has more than {MAX_NODES:,} elements and attributes, or more than {MAX_DEPTH} levels"
            )
        self._builder.start(_named(name), {_named(each): value for each, value in attributes.items()})

    def _end(self, name: str) -> None:
        self._depth -= 1
        self._builder.end(_named(name))

    def _refuse(self, *_declaration: object) -> None:
        raise _XmlError


def _named(name: str) -> str:
    return f"{{{name}" if "}" in name else name


# ---- queries ----


class Budget:
    """The calls of functions that evaluations may still take.

    Attributes:
        left: their number.
    """

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Count one event, as the interpreter's profiling hook, and end the evaluation if there were too many.

        It ends where a function is called, and not in a generator: one that is being closed would swallow the
        exception, and the hook, which is gone then, would stop nothing. Nor does it end where the hook is removed.
        """
        self.left -= 1
        if self.left < 0:
            is_call = event == "c_call" or (event == "call" and not frame.f_code.co_flags & CO_GENERATOR)
            if is_call and argument is not sys.setprofile:
                raise _StopError


class Query:
    """A query that is ready to be evaluated.

    Args:
        text: the query.

    Attributes:
        text: as above.
        uses_content: whether it looks at the content of messages.

    Raises:
        QueryError: it is not valid, or not supported.
    """

    def __init__(self, text: str) -> None:
        library = _library()
        self.text = text
        if len(text) > MAX_QUERY:
            raise QueryError(f"the query has more than {MAX_QUERY:,} characters")
        self._prolog = _read_prolog(_without_comments(text))
        if not self._prolog.text.strip():
            raise QueryError("the query is empty")
        default = self._prolog.namespaces.get("")
        named = {prefix: uri for prefix, uri in self._prolog.namespaces.items() if prefix}
        _check_text(self._prolog.text)
        try:
            parser = library.Parser(named, default_namespace=default)
            self._root = library.parse(parser, self._prolog.text)
            tokens = list(_walk(self._root))
        except library.Error as error:
            raise QueryError(str(error)) from error
        except (RecursionError, ValueError, ArithmeticError, TypeError, LookupError) as error:
            raise QueryError(f"the query cannot be read: {error}") from error
        _check(tokens, self._prolog.external)
        self.uses_content = any(map(_looks, tokens))

    def matches(self, document: Document, headers: Mapping[str, object], budget: Budget) -> bool:
        """Whether a message matches.

        Args:
            document: its content.
            headers: its headers as `variables` returns them.
            budget: what the evaluation may take, and takes of it.

        Raises:
            TooExpensiveError: it takes more, or the document is too large.
        """
        library = _library()
        variables: dict[str, Any] = {}
        for name, wanted in self._prolog.external.items():
            value = headers.get(name)
            if value is None or (wanted and not isinstance(value, _TYPES[wanted])):
                return False
            variables[name] = value
        tree = document.tree if self.uses_content else None
        if tree is None and self.uses_content:
            return False
        hook: Any = sys.getprofile()
        profile = None
        if isinstance(hook, Profile):  # which is no function, and has to be enabled again
            hook, profile = None, hook
        try:
            context = library.Context(tree, item=None if tree is not None else 1, variables=variables)
            sys.setprofile(budget)
            found = list(islice(self._root.select(context), 2))
            return bool(self._root.boolean_value(found))
        except _StopError:
            raise TooExpensiveError("evaluating the query takes too long") from None
        except RecursionError:
            raise TooExpensiveError("the query is too deep") from None
        except (library.Error, ValueError, ArithmeticError, TypeError, LookupError):
            return False
        finally:
            sys.setprofile(hook)
            if profile is not None:
                profile.enable()


@lru_cache(maxsize=SHARED_QUERIES)
def query_of(text: str) -> Query:
    """A query that is ready to be evaluated: one object for those with the same text. Raises as `Query`."""
    return Query(text)


_KEYWORDS: Final = frozenset((*_BETWEEN, "if", "for", "let", "some", "every")) - {"to"}


def _check_text(text: str) -> None:
    """Refuse calls of other functions before the library reads the query. Raises QueryError."""
    tokens = [token for group, token in _tokens(text) if group not in ("space", "string")]
    for token, after in pairwise(tokens):
        if after == "(" and token[0].isalpha() and token not in _KEYWORDS:
            prefix, _, name = token.rpartition(":")
            if name not in _FUNCTIONS or prefix not in ("", "fn", "xs"):
                raise QueryError(f"the function {token}() is not supported")


def _walk(token: Any) -> Iterator[Any]:
    """A token and all in it, but for the names of variables and of prefixes."""
    work = [token]
    while work:
        token = work.pop()
        yield token
        if token.symbol != "$":
            work.extend(token[1:] if token.symbol == ":" else token)


def _check(tokens: list[Any], external: Mapping[str, str]) -> None:
    """Refuse what a query may not contain. Raises QueryError."""
    products = 0
    used: set[str] = set()
    bound = set(external)
    for token in tokens:
        symbol = token.symbol
        if symbol not in _ALLOWED:
            raise QueryError(f"'{symbol}' is not supported")
        products += symbol == "*" and len(token) == 2
        if symbol == "$":
            used.add(token.value)
        if symbol in ("for", "let", "some", "every"):
            bound.update(each.value for each in token if each.symbol == "$")
        if symbol == "(integer)" and len(str(token.value)) > _MAX_DIGITS:
            raise QueryError(f"a number has more than {_MAX_DIGITS} digits")
    if products > MAX_PRODUCTS:
        raise QueryError(f"the query has more than {MAX_PRODUCTS} multiplications")
    if used - bound:
        raise QueryError(f"variable ${min(used - bound)} is not declared")


def _looks(token: Any) -> bool:
    """Whether a token looks at the document."""
    if token.symbol == "*" and len(token) == 2:
        return False
    return token.symbol in _PATHS or (token.symbol in _OF_CONTEXT and not len(token))


def variables(headers: TypedMap) -> dict[str, object]:
    """The headers that can be variables: name -> text, integer (also for a boolean, as in qpidd), or number."""
    found: dict[str, object] = {}
    for name, typed in headers.entries:
        value: object = typed.value if isinstance(typed, TypedValue) else typed
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, bool | int):
            found[name] = int(value)
        elif isinstance(value, float | str):
            found[name] = value
        elif isinstance(value, Decimal):
            found[name] = float(value)
    return found
