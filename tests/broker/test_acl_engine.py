"""The first rule that matches decides; how a property matches depends on its kind."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.exchanges.matching import TopicIndex
from qstore.broker.security.acl import engine as engine_module
from qstore.broker.security.acl.engine import Engine
from qstore.broker.security.acl.reader import read
from qstore.broker.security.acl.tables import LOOKUPS

ACCESS, BIND, CONSUME, CREATE, DELETE = Action.ACCESS, Action.BIND, Action.CONSUME, Action.CREATE, Action.DELETE
EXCHANGE, QUEUE = ObjectType.EXCHANGE, ObjectType.QUEUE


def engine(*lines: str) -> Engine:
    return Engine(read("\n".join(lines).encode()))


def decides(by: Engine, user: str, question: str, **asked: str) -> str:
    """The question is `ACTION OBJECT [NAME]`; without values it passes the name only."""
    action, object_type, name = (*question.split(), "")[:3]
    return by.decide(user, Action(action), ObjectType(object_type), name, asked or None).permission.value


def publishes(by: Engine, user: str, exchange: str, key: str) -> str:
    return by.decide_publish(user, exchange, key).permission.value


def test_the_first_rule_that_matches_decides() -> None:
    by = engine(
        "acl deny bob@QPID create exchange name=test durable=true",
        "acl deny-log bob@QPID create exchange name=myEx type=direct",
        "acl allow all all",
    )
    given = {"durable": "false", "type": "direct", "alternate": "", "autodelete": "false"}
    assert decides(by, "bob@QPID", "create exchange test", **given) == "allow"
    assert decides(by, "bob@QPID", "create exchange myEx", **given) == "deny-log"
    assert decides(by, "bob@QPID", "create exchange test", **{**given, "durable": "true"}) == "deny"
    assert decides(by, "kim@QPID", "create exchange test", **{**given, "durable": "true"}) == "allow"
    decision = by.decide("bob@QPID", CREATE, EXCHANGE, "myEx", given)
    assert decision.why == "rule 2 in line 2: deny-log bob@QPID create exchange name=myEx type=direct"


@pytest.mark.parametrize("named", ["amq.headers", "amq.match", "amq.h*", "amq.m*"])
def test_both_names_of_the_headers_exchange_are_the_same(named: str) -> None:
    by = engine(
        f"acl deny all publish exchange name={named}", f"acl deny all create exchange name=mine alternate={named}",
        f"acl deny all bind exchange name={named} queuename=q", "acl allow all all",
    )  # fmt: skip
    for asked in ("amq.match", "amq.headers"):
        assert publishes(by, "bob@QPID", asked, "") == "deny"
        assert by.decide_forwarding("bob@QPID", asked, "#").permission.value == "deny"
        assert decides(by, "bob@QPID", f"bind exchange {asked}", queuename="q", routingkey="") == "deny"
        assert decides(by, "bob@QPID", "create exchange mine", alternate=asked) == "deny"
    assert publishes(by, "bob@QPID", "amq.direct", "") == "allow"


def test_without_a_rule_it_is_denied() -> None:
    by = engine("acl allow rajith@QPID all all")
    assert decides(by, "rajith@QPID", "delete queue q") == "allow"
    decision = by.decide("other@QPID", DELETE, QUEUE, "q")
    assert (decision.permission.value, decision.why) == ("deny", "no rule matches")


def test_groups_and_single_users() -> None:
    by = engine(
        "group users alice@QPID bob@QPID charlie@QPID",
        "acl deny charlie@QPID create queue",
        "acl allow users create queue",
    )
    made = [decides(by, f"{name}@QPID", "create queue q") for name in ("alice", "bob", "charlie", "dave")]
    assert made == ["allow", "allow", "deny", "deny"]


def test_anonymous_is_of_every_realm() -> None:
    by = engine("acl allow anonymous all")
    assert decides(by, "anonymous@QPID", "create queue q") == "allow"
    assert decides(by, "anonymous", "create queue q") == "allow"
    assert decides(by, "anonymousX@QPID", "create queue q") == "deny"


def test_wildcards() -> None:
    by = engine("acl allow all create queue name=bob*", "acl allow all create queue name=carl.* alternate=*")
    assert decides(by, "a@b", "create queue bobQueue3") == "allow"
    assert decides(by, "a@b", "create queue bo") == "deny"
    assert decides(by, "a@b", "create queue carl.1", alternate="x") == "allow"
    assert decides(by, "a@b", "create queue carl.1", alternate="") == "deny"


def test_a_lookup_with_a_name_only_is_decided_by_the_name() -> None:
    by = engine(
        "acl allow all access exchange name=a queuename=q routingkey=k",
        "acl allow all access exchange durable=true",
    )
    assert decides(by, "a@b", "access exchange a") == "allow"
    assert decides(by, "a@b", "access exchange a", queuename="other", routingkey="k") == "deny"
    assert decides(by, "a@b", "access exchange b") == "deny"
    assert decides(by, "a@b", "access exchange b", durable="true", type="direct") == "allow"


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a.#.b", "a.b a.x.b a.x.y.zz.b", "a.b. q.x.b"),
        ("a.*", "a.b a.", "a a.b.c"),
        ("#", "a.b x", ""),
        ("*.x.#.y", "a.x.y a.x.p.qq.y", "a.a.x.y"),
        ("a*", "a*", "ab"),
    ],
)
def test_routing_keys_are_matched_as_by_a_topic_exchange(pattern: str, matching: str, others: str) -> None:
    by = engine(f"acl allow-log u@COMPANY publish exchange name=X routingkey={pattern}", "acl deny all all")
    assert {publishes(by, "u@COMPANY", "X", key) for key in matching.split()} == {"allow-log"}
    assert {publishes(by, "u@COMPANY", "X", key) for key in others.split()} <= {"deny"}
    assert {publishes(by, "u@COMPANY", "Y", key) for key in matching.split()} == {"deny"}


def test_patterns_do_not_take_long() -> None:
    by = engine("acl allow all publish exchange routingkey=" + "#.a." * 60 + "b")
    began = time.process_time()
    assert publishes(by, "a@b", "X", "a." * 120 + "c") == "deny"
    assert time.process_time() - began < 1  # a backtracking matcher would take for ever


def test_the_default_exchange_has_a_name() -> None:
    by = engine("acl deny all publish exchange name=amq.default routingkey=secret", "acl allow all all")
    assert publishes(by, "a@b", "", "secret") == "deny"
    assert publishes(by, "a@b", "", "open") == "allow"


@pytest.mark.parametrize(
    ("user", "names"),
    [
        ("bob.user@QPID.COM", {"userdomain": "bob_user_QPID_COM", "user": "bob_user", "domain": "QPID_COM"}),
        ("bob", {"userdomain": "bob", "user": "bob", "domain": ""}),
        ("#@R", {"userdomain": "__R", "user": "_", "domain": "R"}),
    ],
)
def test_substitution(user: str, names: dict[str, str]) -> None:
    by = engine(
        *(f"acl allow all create queue name={each}-${{{each}}}-x" for each in names),
        *(f"acl allow all publish exchange name={each} routingkey=a.${{{each}}}.#" for each in names),
        "acl allow all create queue name=mixed-${user}_${domain}",
        "acl allow all publish exchange name=mixed routingkey=${user}_${domain}",
    )
    for each, value in names.items():
        assert decides(by, user, f"create queue {each}-{value}-x") == "allow"
        assert decides(by, "someone@ELSE", f"create queue {each}-{value}-x") == "deny"
        assert publishes(by, user, each, f"a.{value}.b") == "allow"
        assert publishes(by, user, each, "a.other.b") == "deny"
    assert decides(by, user, f"create queue mixed-{names['user']}_{names['domain']}") == "allow"
    assert publishes(by, user, "mixed", f"{names['user']}_{names['domain']}") == "deny"


def test_a_name_is_not_a_wildcard() -> None:
    by = engine("acl allow all create queue name=${user}", "acl allow all publish exchange routingkey=${user}.x")
    assert decides(by, "a*@R", "create queue abc") == "deny"
    assert publishes(by, "*@R", "X", "victim.x") == "deny"


def test_a_name_is_not_a_keyword() -> None:
    by = engine("acl allow all create queue name=${user}-q")
    assert decides(by, "${domain}@victim", "create queue victim-q") == "deny"
    assert decides(by, "${domain}@victim", "create queue ${domain}-q") == "allow"


def test_limits() -> None:
    by = engine(
        "acl allow-log mrQ create queue queuemaxsizelowerlimit=100 queuemaxsizeupperlimit=200 "
        "queuemaxcountlowerlimit=0 queuemaxcountupperlimit=400",
        "acl allow mrQ all all",
    )
    for size, count, wanted in (
        ("150", "350", "allow-log"), ("99", "350", "deny-log"), ("201", "350", "deny-log"), ("100", "400", "allow-log"),
        ("150", "0", "deny-log"), ("0", "1", "deny-log"), ("many", "1", "deny-log"),
    ):  # fmt: skip
        assert decides(by, "mrQ", "create queue q", queuemaxsize=size, queuemaxcount=count) == wanted
    asked = {"queuemaxsize": "99", "queuemaxcount": "1"}
    decision = by.decide("mrQ", CREATE, QUEUE, "q", asked)
    assert decision.exceeded == "queuemaxsizelowerlimit"
    assert decision.why.endswith(", queuemaxsizelowerlimit is not kept")


def test_limits_of_files_and_of_denying_rules() -> None:
    by = engine(
        "acl allow all create queue name=a filemaxsizelowerlimit=2 filemaxsizeupperlimit=32 filemaxcountupperlimit=4",
        "acl allow all create queue name=b filemaxsizeupperlimit=0",
        "acl deny all create queue name=c pagesupperlimit=100",
        "acl allow all all",
    )
    for size, wanted in (("1", "deny"), ("2", "allow"), ("32", "allow"), ("33", "deny")):
        assert decides(by, "u@v", "create queue a", filemaxsize=size, filemaxcount="0") == wanted
    assert decides(by, "u@v", "create queue b", filemaxsize="1000", filemaxcount="0") == "allow"
    for pages in ("50", "500"):
        assert decides(by, "u@v", "create queue c", pages=pages) == "deny"


@pytest.mark.parametrize(
    ("lines", "checks"),
    [
        (["acl deny all all"], False),
        (["acl allow all create queue", "acl deny all all"], False),
        (["acl allow all publish exchange"], True),
        (["acl allow bob@QPID all all", "acl deny all all"], True),
        (["acl deny all all exchange", "acl allow all all"], True),
    ],
)
def test_messages_are_checked_only_if_a_rule_is_about_them(lines: list[str], checks: bool) -> None:
    assert engine(*lines).checks_publish is checks


def test_cache_of_decisions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MAX_REMEMBERED", 5_000)
    by = engine("acl deny all publish exchange routingkey=secret.${user}", "acl allow all all")
    for number in range(300):
        user = f"user{number}@R"
        for key in range(10):
            assert publishes(by, user, "X", f"k{key}") == "allow"
        assert publishes(by, user, "X", f"secret.user{number}") == "deny"
        assert len(by._users) <= 50


# ---- connections ----


def connects(by: Engine, user: str, host: str) -> str:
    return by.decide(user, CREATE, ObjectType.CONNECTION, "", {"host": host}).permission.value


def test_where_users_may_connect_from() -> None:
    by = engine(
        "group admins alice@QPID bob@QPID",
        "acl deny-log all create connection host=10.6.6.6",
        "acl allow admins create connection host=10.0.0.0,10.255.255.255",
        "acl allow admins create connection host=[fc00::],[fc00::ff]",
        "acl deny kim@QPID create connection host=all",
        "acl deny all create connection host=all",
        "acl allow all all",
    )
    assert connects(by, "", "10.6.6.6") == "deny-log"
    assert connects(by, "", "10.6.6.7") == "allow", "who it is is not known yet"
    assert connects(by, "alice@QPID", "10.6.6.6") == "deny-log"
    assert connects(by, "alice@QPID", "10.255.255.255") == "allow"
    assert connects(by, "alice@QPID", "::ffff:10.0.0.1") == "allow"
    assert connects(by, "alice@QPID", "11.0.0.0") == "deny"
    assert connects(by, "bob@QPID", "fc00::ff") == "allow"
    assert connects(by, "bob@QPID", "fc00::100") == "deny"
    assert connects(by, "kim@QPID", "10.0.0.1") == "deny"


def test_a_global_rule_that_allows_comes_first_too() -> None:
    by = engine("acl deny bob@QPID create connection", "acl allow all create connection host=127.0.0.1")
    assert connects(by, "bob@QPID", "127.0.0.1") == "allow"
    assert connects(by, "bob@QPID", "127.0.0.2") == "deny"
    assert connects(by, "kim@QPID", "127.0.0.2") == "allow", "other rules are not about connections"
    assert connects(by, "kim@QPID", "not an address") == "allow"


# ---- declarations by which messages are forwarded ----


def forwards(by: Engine, pattern: str, exchange: str = "kx") -> str:
    return by.decide_forwarding("bob@QPID", exchange, pattern).permission.value


def test_a_declaration_needs_every_key() -> None:
    by = engine(
        "acl allow bob@QPID publish exchange name=kx routingkey=hot.mine.#",
        "acl deny bob@QPID publish exchange name=kx routingkey=hot.#",
        "acl deny bob@QPID publish exchange name=closed",
        "acl allow bob@QPID publish exchange name=own*",
        "acl allow bob@QPID publish exchange name=kx routingkey=cold.#",
        "acl deny all all",
    )
    allowed = ("hot.mine.#", "hot.mine.a.*", "cold.#", "cold.*.x", "#.cold.x.#"[2:])
    assert [forwards(by, pattern) for pattern in allowed] == ["allow"] * len(allowed)
    refused = ("#", "*", "*.a", "hot.*", "#.x", "other", "*.cold", "hot.#.mine")
    assert [forwards(by, pattern) for pattern in refused] == ["deny"] * len(refused)
    assert (forwards(by, "#", "own-exchange"), forwards(by, "#", "closed"), forwards(by, "#", "")) == (
        "allow", "deny", "deny"
    )  # fmt: skip
    assert by.decide_forwarding("bob@QPID", "kx", "*.a").rule is by.rules.rules[1], "what may be denied says why"


def test_in_allow_mode_a_denied_key_refuses_the_patterns_that_may_have_it() -> None:
    by = engine("acl deny bob@QPID publish exchange name=kx routingkey=hot.#", "acl allow all all")
    assert [forwards(by, each) for each in ("#", "*.x", "hot", "#.hot", "a.#", "cold.hot.#")] == [
        "deny", "deny", "deny", "deny", "allow", "allow"
    ]  # fmt: skip


def test_several_rules_that_allow_all_keys_only_together_do_not_count() -> None:
    by = engine(
        "acl allow bob@QPID publish exchange name=kx routingkey=a",
        "acl allow bob@QPID publish exchange name=kx routingkey=*.#",
        "acl deny all all",
    )
    assert (forwards(by, "#"), forwards(by, "*"), forwards(by, "#.*")) == ("deny", "allow", "allow")


def test_a_rule_for_no_key_at_all_neither_allows_nor_denies() -> None:
    by = engine(
        "acl deny bob@QPID publish exchange name=kx routingkey=${user}_${domain}",
        "acl deny bob@QPID all all queuename=x",
        "acl allow all all",
    )
    assert forwards(by, "#") == "allow"


def test_a_prefix_of_version_1_allows_every_key_only_if_it_is_empty() -> None:
    text = """<access_control_list><publish><exchanges><exchange><name>{}</name><routing_keys><routing_key>
        <value>{}</value><users><user>bob</user></users></routing_key></routing_keys></exchange></exchanges></publish>
        </access_control_list>"""
    narrow, wide = (Engine(read(text.format("kx", value).encode())) for value in ("a.*", "*"))
    assert (forwards(narrow, "a.#"), forwards(narrow, "#"), forwards(wide, "#")) == ("deny", "deny", "allow")


_PATTERNS = st.lists(st.sampled_from(("a", "b", "*", "#")), min_size=1, max_size=4).map(".".join)
_KEYS = [".".join(key) for size in range(1, 6) for key in itertools.product("abz", repeat=size)]


@given(st.lists(st.tuples(st.booleans(), _PATTERNS), max_size=4), _PATTERNS, st.booleans())
def test_pattern_allowed_as_a_whole_allows_each_key(rules: list[tuple[bool, str]], pattern: str, default: bool) -> None:
    lines = [f"acl {'allow' if allows else 'deny'} all publish exchange routingkey={key}" for allows, key in rules]
    by = engine(*lines, "acl allow all all" if default else "acl deny all all")
    if forwards(by, pattern) == "allow":
        matching = TopicIndex()
        matching.add(pattern)
        refused = [key for key in _KEYS if matching.match(key) and publishes(by, "bob@QPID", "kx", key) == "deny"]
        assert not refused


def test_long_patterns_do_not_take_long() -> None:
    by = engine(*(f"acl deny bob@QPID publish exchange routingkey={'#.a.' * 50}{number}" for number in range(200)))
    began = time.process_time()
    assert forwards(by, ".".join(["#", "b"] * 60)) == "deny"
    assert forwards(by, ".".join(["b", "*"] * 16)) == "deny"
    assert time.process_time() - began < 2


# ---- the table ----


def test_the_lookups_are_those_of_the_manual() -> None:
    assert list(LOOKUPS) == list(range(1, 40)), "35 of the manual, and this broker's own"
    by = engine("acl allow b@qpid all all", "acl allow all access exchange alternate=abc", "acl allow all reroute all")
    assert by.rules.rules[0].lookups == list(LOOKUPS)
    assert by.rules.rules[1].lookups == [4]
    assert by.rules.rules[2].lookups == [33]
    assert {LOOKUPS[number].action for number in (17, 18)} == {CONSUME}
    assert LOOKUPS[15].asked == LOOKUPS[34].asked == {"name", "queuename", "routingkey"}
    assert {number for number, each in LOOKUPS.items() if each.action is BIND} == {15, 16}
    assert {number for number, each in LOOKUPS.items() if each.object_type is EXCHANGE and each.action is ACCESS} == {
        2, 3, 4, 5, 6
    }  # fmt: skip
