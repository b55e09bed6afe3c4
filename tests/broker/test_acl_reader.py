"""ACL files of all three versions are read as intended; errors name the line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.security.acl import reader
from qstore.broker.security.acl.engine import Engine
from qstore.broker.security.acl.reader import read, read_file
from qstore.broker.security.acl.rules import AclFileError, RuleSet
from qstore.broker.security.acl.tables import Permission

NAMES = {"example.com": ["192.0.2.1", "192.0.2.2"], "one.example.com": ["2001:db8::1"]}


def find(name: str) -> list[str]:
    if name not in NAMES:
        raise OSError(-2, "Name or service not known")
    return NAMES[name]


def rules(*lines: str) -> RuleSet:
    return read("\n".join(lines).encode(), find=find)


def refused(*lines: str) -> str:
    with pytest.raises(AclFileError) as caught:
        rules(*lines)
    return str(caught.value)


# ---- version 2 ----


def test_the_book_s_example() -> None:
    found = rules(
        "# groups",
        "group admin ted@QPID martin@QPID",
        "group user-consume martin@QPID ted@QPID",
        "group group2 kim@QPID user-consume rob@QPID",
        "group publisher group2 \\",
        "    tom@QPID andrew@QPID debbie@QPID",
        "",
        " \t\f\v",
        "acl allow carlt@QPID create exchange name=carl.*",
        "  acl   allow\tuser-consume create queue name=tmp.*  ",
        "acl allow consumer consume queue",
        "acl allow fred@QPID create all",
        "acl allow-log bob@QPID all queue",
        "acl allow admin all",
        "acl deny-log all all",
    )
    assert found.version == 2
    assert {name: len(users) for name, users in found.groups.items()} == {
        "admin": 2, "user-consume": 2, "group2": 4, "publisher": 7
    }  # fmt: skip
    assert found.groups["publisher"] >= {"martin@QPID", "debbie@QPID"}
    assert [(each.number, each.line, str(each)) for each in found.rules] == [
        (1, 9, "allow carlt@QPID create exchange name=carl.*"),
        (2, 10, "allow user-consume create queue name=tmp.*"),
        (3, 11, "allow consumer consume queue"),
        (4, 12, "allow fred@QPID create all"),
        (5, 13, "allow-log bob@QPID all queue"),
        (6, 14, "allow admin all all"),
        (7, 15, "deny-log all all all"),
    ]
    assert found.rules[2].users == {"consumer"}
    assert found.rules[6].is_mode
    assert found.default is Permission.DENY
    assert found.warnings == ()


def test_quotas() -> None:
    found = rules(
        "group admin ted@QPID martin@QPID",
        "quota connections 10 admin rob@QPID",
        "quota connections 5 all",
        "quota connections 0 ted@QPID",
        "quota queues 65530 test@qpid",
    )
    assert found.limits("connections") == ({"ted@QPID": 0, "martin@QPID": 10, "rob@QPID": 10}, 5)
    assert found.limits("queues") == ({"test@qpid": 65530}, None)
    (warning,) = rules("quota queues 5").warnings
    assert str(warning) == "line 1: the quota is ignored: it names no users: 'quota queues 5'"


def test_a_rule_may_be_about_any_name() -> None:
    found = rules("acl allow CN=joe$H all")
    assert Engine(found).decide("CN=joe$H", Action.CREATE, ObjectType.QUEUE, "q").allows


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("acl group", "line 1: Insufficient tokens for acl definition: 'acl group'"),
        ("acl permit all all", 'Unknown ACL permission "permit"'),
        ("acl allow all eat", 'Unknown ACL action "eat"'),
        ("acl allow all create cake", 'Unknown ACL object "cake"'),
        ("acl allow all create queue colour=red", 'Unknown ACL property "colour"'),
        ("acl allow all create queue name", 'Badly formed property "name"'),
        ("acl allow all create queue name=a name=b", 'The property "name" is given twice'),
        ("acl allow all create queue durable=yes", "yes is not a valid value for 'durable', possible values"),
        ("acl allow all create queue policytype=x", "x is not a valid value for 'policytype', possible values are"),
        ("acl allow all create queue maxqueuesize=-1", "-1 is not a valid value for 'queuemaxsizeupperlimit', values"),
        (f"acl allow all create queue pageslowerlimit={1 << 63}", "should be between 0 and 9223372036854775807"),
        ("group a joe$H@QPID", 'Username "joe$H@QPID" contains illegal characters'),
        ("group a.b joe@QPID", 'Group name "a.b" contains illegal characters'),
        ("group all joe@QPID", '"all" cannot be the name of a group'),
        ("group a joe", 'the group "joe" is not defined yet.'),
        ("group a a", 'the group "a" is not defined yet.'),
        ("group", "Insufficient tokens for group definition"),
        ("group a\ngroup a", 'line 2: Group "a" is defined already'),
        ("quota connections", "Insufficient tokens for quota definition"),
        ("quota cakes 1 all", 'Unknown quota "cakes"'),
        ("quota queues 65531 all", '"65531" is not a valid quota, values should be between 0 and 65530'),
        ("quota queues \u0662 all", "line 1: the byte 0xd9 is not ASCII"),
        ("acls allow all all", 'Non-continuation line must start with "group", "acl" or "quota"'),
        ("ACLs allow all all", 'Non-continuation line must start with "group", "acl" or "quota"'),
        ("acl allow all \\\nall", "only a group continues"),
        ("group \\\na joe@QPID", "only a group continues, and after its name"),
        ("group a joe@QPID \\\n  \\\nbob@QPID", "line 2: the line contains an illegal extension: it has no member"),
        ("acl allow all create queue name=" + "x" * 1024, "line 1: the line is longer than 1024 characters"),
        ("acl allow all all\0", "the line contains a zero byte"),
        ("acl allow all create connection host=nowhere", 'host "nowhere" has no address: Name or service not known'),
        ("acl allow all create connection host=example.com,192.0.2.9", '"example.com" has 2 addresses'),
        ("acl allow all create connection host=192.0.2.9,192.0.2.1", "the second address must be larger"),
        ("acl allow all create connection host=192.0.2.9,one.example.com", "a range from IPv4 to IPv6"),
        ("acl allow all create connection host=1.1.1.1,2.2.2.2,3.3.3.3", "is not a host, or two of them"),
        ("acl allow all create connection host=", "a host is missing"),
    ],
)  # fmt: skip
def test_errors(line: str, reason: str) -> None:
    assert reason in refused(*line.split("\n"))


def test_every_error_is_reported_with_its_line() -> None:
    text = refused("acl allow all all", "acl x all all", "group a b", "# fine", "nonsense")
    assert [part.partition(":")[0] for part in text.partition(": ")[2].split("; ")] == ["line 2", "line 3", "line 5"]
    many = refused(*["nonsense"] * 1000)
    assert many.endswith("; and 95 more")
    assert len(many) < 2000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("acl allow all delete broker", "Broker never checks for rules with action: 'delete' and object: 'broker'"),
        ("acl allow all access route", "rules with action: 'access' and object: 'route'"),
        ("acl allow all create queue exchangename=xyz", "will never match with property set: { exchangename=xyz }"),
        ("acl allow all access exchange alternate=abc queuename=xyz", "property set: { alternate=abc queuename=xyz }"),
        ("acl allow bob@QPID create exchange name=a passive=true", "property set: { name=a passive=true }"),
        ("acl deny bob@QPID all all host=192.0.2.1", "will never match with property set: { host=192.0.2.1 }"),
    ],
)  # fmt: skip
def test_rules_without_effect_are_warned_of(line: str, reason: str) -> None:
    found = rules("acl allow anna@QPID all", line, "acl deny all all", "acl allow anna@QPID create queue")
    assert [each.number for each in found.rules] == [1, 3]
    assert [each.line for each in found.warnings] == [2, 4]
    assert reason in str(found.warnings[0])
    assert "rule 3, deny all all all, has decided already" in str(found.warnings[1])


def test_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reader, "MAX_RULES", 3)
    assert "more than 3 rules" in refused(*["acl allow all create queue"] * 4)
    monkeypatch.setattr(reader, "MAX_GROUPS", 3)
    assert "more than 3 groups" in refused(*(f"group g{number}" for number in range(4)))
    monkeypatch.setattr(reader, "MAX_GROUPS", 1000)
    chain = ["group g0 a@b", *(f"group g{number} g{number - 1}" for number in range(1, 101))]
    rules(*chain[:100])
    assert 'Group "g100" is nested more than 100 deep' in refused(*chain)
    monkeypatch.setattr(reader, "MAX_MEMBERS", 50)
    assert "the groups have more than 50 members" in refused(*chain[:100])
    monkeypatch.setattr(reader, "MAX_FILE", 10)
    file = tmp_path / "a.acl"
    file.write_text("#" * 11)
    with pytest.raises(AclFileError, match="larger than 10 bytes"):
        read_file(str(file))


def test_path_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, reason in (("missing", "No such file"), (".", "Is a directory|is not a file"), ("fifo", "is not a file")):
        with pytest.raises(AclFileError, match=reason):
            read_file(str(tmp_path / name))
    with pytest.raises(AclFileError, match="name is not valid"):
        read_file("a\0b")


# ---- version 3 ----


def test_version_3() -> None:
    found = rules(
        "# grammar of the proposal",
        "CONFIG defaultallow = true controlled=FALSE",
        "Group Writers 'adk@iterator' kim@QPID",
        '110 ALLOW "adk@iterator" ACCESS VIRTUALHOST',
        "210 ALLOW-LOG \\",
        '    "adk@iterator" BIND EXCHANGE \\',
        '    routing_Key="adk.*" \\',
        '    name="amq.direct" # a comment',
        "220 acl Allow Writers Create Queue QueueMaxCountUpperLimit = 5 Durable=TRUE",
        "Deny_Log any Publish Exchange name='a b#c'",
        "910 DENY ANY ALL ALL",
    )
    assert found.version == 3
    assert found.default is Permission.ALLOW
    assert [str(each) for each in found.rules] == [
        "allow adk@iterator access virtualhost",
        "allow-log adk@iterator bind exchange routingkey=adk.* name=amq.direct",
        "allow Writers create queue queuemaxcountupperlimit=5 durable=true",
        "deny-log all publish exchange name=a b#c",
        "deny all all all",
    ]
    assert [(each.number, each.line) for each in found.rules] == [(1, 4), (2, 5), (3, 9), (4, 10), (5, 11)]
    assert [each.line for each in found.warnings] == [2]
    assert found.groups["Writers"] == {"adk@iterator", "kim@QPID"}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["2 ACL ALLOW ALL ALL", "2 ACL DENY ALL ALL"], "line 2: rule 2 follows rule 2: numbers must grow"),
        (["1 ACL ALLOW 'ALL ALL"], 'unexpected character "\'"'),
        (["CONFIG defaultdeny"], "a property is not NAME=VALUE"),
        (["CONFIG defaultdeny=maybe"], "not followed by =true or =false"),
        (["1"], "a number without a rule"),
        (["1 EAT"], '"EAT" is not ACL, GROUP, QUOTA, CONFIG or a permission'),
        (["ACL ALLOW ALL CREATE QUEUE a b c"], '"a" is not followed by = and a value'),
        (["1 ACL ALLOW"], "Insufficient tokens"),
        (["CONFIG expand=true", "ALLOW all PUBLISH TOPIC durable=true"], "has only the properties name and routingkey"),
        (["CONFIG transitive=true", "ALLOW all CREATE QUEUE routingkey=x"], "the rule must name the queue"),
    ],
)
def test_errors_of_version_3(lines: list[str], reason: str) -> None:
    assert reason in refused(*lines)


def decided(found: RuleSet, user: str, question: str, **asked: str) -> bool:
    """Whether a user may do something: `create queue q`."""
    action, what, *name = question.split()
    by = Engine(found)
    return by.decide(user, Action(action), ObjectType(what), "".join(name), asked or None).allows


def test_temporary_and_owner_of_version_3() -> None:
    found = rules(
        '230 ALLOW "adk@iterator" CREATE QUEUE name="adk.*" owner="adk@iterator"',
        '240 ALLOW "adk@iterator" CREATE QUEUE temporary="true" owner="adk@iterator"',
        "250 DENY all DELETE QUEUE temporary=TRUE",
        "260 ALLOW all DELETE QUEUE",
    )
    assert not found.warnings
    mine, others = {"owner": "adk@iterator"}, {"owner": "kim@iterator"}
    assert decided(found, "adk@iterator", "create queue adk.x", temporary="false", **mine)
    assert not decided(found, "adk@iterator", "create queue adk.x", temporary="false", **others)
    assert not decided(found, "adk@iterator", "create queue other", temporary="false", **mine)
    assert decided(found, "adk@iterator", "create queue other", temporary="true", **mine)
    assert not decided(found, "kim@iterator", "create queue other", temporary="true", **others)
    assert not decided(found, "kim@iterator", "delete queue other", temporary="true", **others)
    assert decided(found, "kim@iterator", "delete queue other", temporary="false", owner="")


def test_transitive_rules_of_version_3() -> None:
    found = rules(
        '1 ALLOW a@Q CREATE QUEUE QueueName="kitten" Routingkey="chocolate biscuits" ExchangeName=amq.direct',
        "CONFIG transitive=true",
        '2 ALLOW b@Q CREATE QUEUE Owner="b@Q" QueueName="kitten.*" Routingkey="chocolate biscuits"',
        "3 ALLOW-LOG c@Q CREATE QUEUE temporary=true",
        "4 ALLOW d@Q CREATE QUEUE durable=false",
        "5 DENY e@Q CREATE QUEUE",
        "6 ALLOW f@Q CONSUME QUEUE name=q",
    )
    assert [(each.line, each.reason[:16]) for each in found.warnings] == [(1, "ACL rule ignored")]
    shown = [(each.number, each.line, str(each)) for each in found.rules]
    assert shown[:3] == [
        (2, 3, "allow b@Q create queue owner=b@Q name=kitten.*"),
        (3, 3, "allow b@Q access virtualhost"),
        (4, 3, "allow b@Q bind exchange queuename=kitten.* routingkey=chocolate biscuits"),
    ]
    assert decided(found, "b@Q", "bind exchange x", queuename="kitten.1", routingkey="chocolate biscuits")
    assert not decided(found, "b@Q", "bind exchange x", queuename="kitten.1", routingkey="else")
    assert not decided(found, "b@Q", "bind exchange x", queuename="dog", routingkey="chocolate biscuits")
    assert not decided(found, "a@Q", "create queue kitten", temporary="false")
    assert decided(found, "c@Q", "bind exchange x", queuename="TempQueue7", routingkey="any")
    assert not decided(found, "c@Q", "bind exchange x", queuename="q", routingkey="any")
    assert decided(found, "d@Q", "access virtualhost blue")
    assert not decided(found, "d@Q", "bind exchange x", queuename="q", routingkey="any")
    assert not decided(found, "e@Q", "access virtualhost blue")
    assert decided(found, "f@Q", "access virtualhost blue")


def test_expanded_rules_of_version_3() -> None:
    found = rules(
        "CONFIG expand=true",
        'ALLOW a@Q PUBLISH TOPIC name="news.*"',
        "ALLOW b@Q CONSUME TOPIC routingkey='news.#.uk'",
        "DENY c@Q CONSUME TOPIC name=secret",
        "ALLOW c@Q BIND EXCHANGE",
        'ALLOW d@Q PUBLISH QUEUE routingkey="adk.export"',
        'ALLOW d@Q PUBLISH QUEUE name="adk.*.x"',
        "ALLOW e@Q ALL TOPIC name=t",
    )
    assert not found.warnings
    assert str(found.rules[0]) == "allow a@Q publish exchange name=amq.topic routingkey=news.*"
    assert decided(found, "a@Q", "publish exchange amq.topic", routingkey="news.uk.london")
    assert not decided(found, "a@Q", "publish exchange amq.topic", routingkey="weather")
    assert not decided(found, "a@Q", "publish exchange amq.direct", routingkey="news.uk")
    assert decided(found, "b@Q", "create queue x", temporary="true")
    assert not decided(found, "b@Q", "create queue x", temporary="false")
    assert decided(found, "b@Q", "consume queue tmp_1")
    assert not decided(found, "b@Q", "consume queue orders")
    assert decided(found, "b@Q", "bind exchange amq.topic", queuename="tmp_1", routingkey="news.a.uk")
    assert not decided(found, "b@Q", "bind exchange amq.topic", queuename="orders", routingkey="news.a.uk")
    assert not decided(found, "c@Q", "bind exchange amq.topic", queuename="q", routingkey="secret")
    assert decided(found, "c@Q", "bind exchange amq.topic", queuename="q", routingkey="open")
    assert decided(found, "d@Q", "publish exchange", routingkey="adk.export")
    assert decided(found, "d@Q", "publish exchange", routingkey="adk.*.x")  # a name is no pattern
    assert not decided(found, "d@Q", "publish exchange", routingkey="adk.1.x")
    for question in ("publish exchange amq.topic", "bind exchange amq.topic", "unbind exchange amq.topic"):
        assert decided(found, "e@Q", question, routingkey="t", queuename="tmp_1")
        assert not decided(found, "e@Q", question, routingkey="other", queuename="tmp_1")


# ---- version 1 ----

LIST = """<?xml version="1.0"?>
<security><access_control_list>
  <access><users><user>admin</user></users></access>
  <publish><exchanges><exchange><name>amq.direct</name><routing_keys>
    <routing_key><value>example.RequestQueue</value><users><user>client</user></users></routing_key>
    <routing_key><value>tmp_*</value><users><user>server</user></users></routing_key>
  </routing_keys></exchange></exchanges></publish>
  <consume><queues>
    <queue><temporary/><users><user>client</user></users></queue>
    <queue><name>example.RequestQueue</name><users><user>server@OTHER</user></users></queue>
  </queues></consume>
  <create><queues>
    <queue><temporary/><exchanges><exchange><name>amq.direct</name><users><user>client</user></users></exchange>
      </exchanges></queue>
    <queue><name>example.RequestQueue</name><users><user>server</user></users></queue>
  </queues></create>
</access_control_list></security>"""


def test_version_1() -> None:
    found = read(LIST.encode(), realm="R")
    assert found.version == 1
    engine = Engine(found)

    def allows(user: str, action: Action, object_type: ObjectType, name: str, **asked: str) -> bool:
        return engine.decide(user, action, object_type, name, asked or None).allows

    publish, consume, create = Action.PUBLISH, Action.CONSUME, Action.CREATE
    exchange, queue = ObjectType.EXCHANGE, ObjectType.QUEUE
    assert engine.checks_publish
    assert allows("admin@R", publish, exchange, "x", routingkey="y")
    assert allows("client@R", publish, exchange, "amq.direct", routingkey="example.RequestQueue")
    assert not allows("client@R", publish, exchange, "amq.direct", routingkey="tmp_1.2")
    assert allows("server@R", publish, exchange, "amq.direct", routingkey="tmp_1.2")
    assert not allows("server@R", publish, exchange, "amq.topic", routingkey="tmp_1.2")
    assert allows("client@R", consume, queue, "TempQueue7")
    assert not allows("client@R", consume, queue, "example.RequestQueue")
    assert allows("server@OTHER", consume, queue, "example.RequestQueue")
    assert allows("client@R", create, queue, "t", autodelete="true", exclusive="true")
    assert not allows("client@R", create, queue, "t", autodelete="false", exclusive="true")
    assert allows("server@R", create, queue, "example.RequestQueue", autodelete="false", exclusive="false")
    assert not allows("other@R", create, queue, "q", autodelete="true", exclusive="true")
    assert allows("other@R", Action.DELETE, queue, "q")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<a>", "line 1: not well-formed XML"),
        ("<a/>", "the file has 0 elements <access_control_list>"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "a document type is not allowed"),
        ("<a>" * 40, "too many elements"),
        ("<access_control_list><delete/></access_control_list>", "<delete> is not one of access, publish"),
        (LIST.replace("client", " "), "<user> is empty"),
        (LIST.replace("value", "key"), "<routing_key> has no <value>"),
    ],
)
def test_errors_of_version_1(text: str, reason: str) -> None:
    with pytest.raises(AclFileError) as caught:
        read(text.encode())
    assert reason in str(caught.value)


# ---- hostile ----

WORDS = st.sampled_from(
    [
        "acl",
        "group",
        "quota",
        "allow",
        "deny",
        "deny-log",
        "all",
        "a",
        "a@QPID",
        "b$",
        "create",
        "queue",
        "connection",
        "exchange",
        "access",
        "link",
        "connections",
        "queues",
        "1",
        "name=x",
        "name=",
        "routingkey=a.#.*",
        "routingkey=${user}",
        "host=1.1.1.1",
        "host=all",
        "host=x,y",
        "durable=true",
        "pagesupperlimit=5",
        "=",
        "\\",
        "#",
        "'",
        '"',
        "CONFIG",
        "defaultallow=true",
        "10",
        "<a>",
        "ALLOW",
        "ANY",
        "\x00",
        "ÿ",
    ]
)
LINES = st.lists(st.lists(WORDS, max_size=8).map(" ".join), max_size=12).map("\n".join)


def read_or_complain(data: bytes) -> RuleSet | AclFileError:
    try:
        return read(data, find=find)
    except AclFileError as error:
        return error


@given(st.one_of(st.binary(max_size=200), LINES.map(lambda text: text.encode("latin-1"))))
def test_arbitrary_file_is_read_or_refused(data: bytes) -> None:
    found = read_or_complain(data)
    if isinstance(found, AclFileError):
        assert found.problems
        assert "\n" not in str(found)
        return
    engine = Engine(found)
    for user in ("a@QPID", "", "x.y@*#"):
        for rule in found.rules:
            for action in [rule.action] if rule.action else Action:
                for object_type in [rule.object_type] if rule.object_type else ObjectType:
                    asked = {each.asked: "1" for each, _ in rule.properties if each.name != "name"}
                    engine.decide(user, action, object_type, "x", asked or None)
                    engine.decide_publish(user, "", "a.b")
