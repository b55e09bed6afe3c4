"""The configuration of Apache's Java broker: what stores, brokers and settings get of it, and what is listed."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pika
import pytest

from qstore.broker.process.option_table import GROUPS
from qstore.broker.process.options import Table
from qstore.broker.security.acl.reader import read_file as read_acl
from qstore.broker.security.firewall import read_file as read_firewall
from qstore.broker.security.users.user_file import Users
from qstore.tools.interchange import java_broker
from tests.support.running_broker import BrokerMaker, make_broker
from tests.tools.interchange_runs import bring, export, lines_of

__all__ = ["make_broker"]

VIRTUAL_HOSTS = """<?xml version="1.0"?>
<!-- the example of the manual, with the pages about priorities, last values, flow control and slow consumers -->
<virtualhosts>
  <default>localhost</default>
  <virtualhost>
    <name>localhost</name>
    <localhost>
      <minimumAlertRepeatGap>30000</minimumAlertRepeatGap>
      <security><firewall default-action="deny"><rule access="allow" network="192.168.1.0/24"/></firewall></security>
      <store><class>org.apache.qpid.server.store.berkeleydb.BDBMessageStore</class></store>
      <exchanges>
        <exchange><type>direct</type><name>test.direct</name><durable>true</durable></exchange>
        <exchange><type>odd</type><name>test.odd</name></exchange>
      </exchanges>
      <queues>
        <exchange>amq.direct</exchange>
        <maximumQueueDepth>4235264</maximumQueueDepth> <!-- 4Mb -->
        <maximumMessageSize>2117632</maximumMessageSize>
        <maximumMessageAge>600000</maximumMessageAge>
        <queue><name>ping</name></queue>
        <queue><name>test-queue</name><test-queue><exchange>test.direct</exchange><durable>true</durable>
          <routingKey>a</routingKey><routingKey>b</routingKey><maximumMessageAge>1</maximumMessageAge></test-queue></queue>
        <queue><name>urgent</name><urgent><priority>true</priority></urgent></queue>
        <queue><name>few</name><few><priorities>3</priorities></few></queue>
        <queue><name>last</name><last><lvq>true</lvq><priority>true</priority></last></queue>
        <queue><name>isin</name><isin><lvq>true</lvq><lvqKey>ISIN</lvqKey></isin></queue>
        <queue><name>full</name><full><capacity>10485760</capacity>
          <flowResumeCapacity>8388608</flowResumeCapacity></full></queue>
        <queue><name>even</name><even><capacity>1000</capacity><maximumMessageCount>x</maximumMessageCount></even></queue>
        <queue><name>slow</name><slow><exchange>amq.topic</exchange><routingKey>stocks.#</routingKey><consumer>
          <depth>4235264</depth><messageAge>600000</messageAge><messageCount>50</messageCount>
          <policy name="Delete"><options><option name="delete-persistent" value="true"/></options></policy>
        </consumer></slow></queue>
        <queue><name>lost</name><lost><exchange>test.odd</exchange><autodelete>true</autodelete></lost></queue>
      </queues>
      <topics><topic key="stocks.us.*"><alerting><depth>1</depth></alerting></topic></topics>
    </localhost>
  </virtualhost>
  <virtualhost><name>test</name><test><queues><queue><name>devqueue</name></queue></queues></test></virtualhost>
</virtualhosts>
"""
CONFIG = """<broker>
  <prefix>${QPID_HOME}</prefix>
  <work>${QPID_WORK}</work>
  <conf>${prefix}/etc</conf>
  <connector>
    <ssl><enabled>true</enabled><sslOnly>true</sslOnly><keystorePath>/path/to/keystore.ks</keystorePath>
      <keystorePassword>keystorepass</keystorePassword></ssl>
    <transport>nio</transport><port>5673</port><sslport>8672</sslport><bind>127.0.0.1</bind>
  </connector>
  <management><enabled>true</enabled><jmxport>8999</jmxport></management>
  <advanced><framesize>65535</framesize></advanced>
  <security>
    <principal-databases><principal-database>
      <name>passwordfile</name>
      <class>org.apache.qpid.server.security.auth.database.Base64MD5PasswordFilePrincipalDatabase</class>
      <attributes><attribute><name>passwordFile</name><value>${conf}/passwd</value></attribute></attributes>
    </principal-database></principal-databases>
    <access><class>org.apache.qpid.server.security.access.plugin.AllowAll</class></access>
    <jmx><access>${conf}/jmxremote.access</access><principal-database>passwordfile</principal-database></jmx>
    <firewall default-action="deny">
      <rule access="allow" hostname="*.qpid.apache.org"/>
      <xml fileName="more.xml"/>
      <rule access="allow" network="10.0.0.0/8, 127.0.0.1"/>
      <rule access="allow" hostname="("/>
    </firewall>
    <access_control_list><access><users><user>martin</user></users></access></access_control_list>
  </security>
  <virtualhosts>${conf}/virtualhosts.xml</virtualhosts>
</broker>
"""
MD5 = "X03MO1qnZdYdgyfeuILPmQ=="  # of "password"


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """A directory with all files."""
    directory = tmp_path / "etc"
    directory.mkdir()
    (directory / "config.xml").write_text(CONFIG)
    (directory / "virtualhosts.xml").write_text(VIRTUAL_HOSTS)
    (directory / "passwd").write_text(f"# users\nmartin:{MD5}\nanna:{MD5}\nbad:x\n")
    (directory / "jmxremote.access").write_text("martin=admin\nanna=readonly\n")
    (directory / "more.xml").write_text('<firewall><rule action="deny" network="192.0.2.0/24"/></firewall>')
    return directory


def stored(store: Path, scratch: Path) -> dict[str, list[dict[str, Any]]]:
    """Kind -> objects of a store."""
    path = scratch / "stored.jsonl"
    path.unlink(missing_ok=True)
    assert export(store, path).exit_code == 0
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines_of(path):
        found.setdefault(str(line.get("kind")), []).append(line)
    return found


def arguments_of(queue: dict[str, Any]) -> dict[str, Any]:
    return {name: each["value"] if isinstance(each, dict) else each for name, each in queue["arguments"].items()}


def test_virtual_hosts_with_queues_exchanges_limits_and_alerts(configuration: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = bring(configuration / "virtualhosts.xml", store, "--vhost", "localhost", "--to-vhost", "/")
    assert done.exit_code == 1, done.output
    found = stored(store, tmp_path)
    queues = {each["name"]: arguments_of(each) for each in found["queue"]}
    alerts = {"qpid.alert_size": 4235264, "qpid.alert_message_size": 2117632, "qpid.alert_message_age": 600000}
    alerts["qpid.alert_repeat_gap"] = 30
    assert queues["ping"] == queues["lost"] == alerts
    assert queues["test-queue"] == alerts | {"qpid.alert_message_age": 1}
    assert queues["urgent"] == alerts | {"qpid.priorities": 10}
    assert queues["few"] == alerts | {"qpid.priorities": 3}
    assert queues["last"] == alerts | {"qpid.last_value_queue_key": "qpid.LVQ_key"}
    assert queues["isin"] == alerts | {"qpid.last_value_queue_key": "ISIN"}
    assert queues["full"] == alerts | {"qpid.flow_stop_size": 10485760, "qpid.flow_resume_size": 8388608}
    assert queues["even"] == alerts | {"qpid.flow_stop_size": 1000, "qpid.flow_resume_size": 1000}
    slow = {"qpid.slow_consumer_size": 4235264, "qpid.slow_consumer_age": 600000, "qpid.slow_consumer_count": 50}
    slow |= {"qpid.slow_consumer_policy": "delete", "qpid.slow_consumer_delete_durable": 1}
    assert queues["slow"] == alerts | slow
    assert "devqueue" not in queues
    bound = {(each["exchange"], each["queue"], each["key"]) for each in found["binding"]}
    assert {("amq.direct", "ping", "ping"), ("amq.topic", "slow", "stocks.#")} <= bound
    assert {each for each in bound if each[1] == "test-queue"} == {
        ("test.direct", "test-queue", "a"), ("test.direct", "test-queue", "b")
    }  # fmt: skip
    assert not [each for each in bound if each[1] == "lost"]
    assert [each["auto_delete"] for each in found["queue"] if each["name"] == "lost"] == [True]
    for text in (
        'vhost "test": another virtual host: it is left out',
        'exchange "test.odd" of virtual host "localhost": type odd is not known',
        'queue "lost" of virtual host "localhost": there is no exchange test.odd: it is not bound',
        'queue "even" of virtual host "localhost": maximumMessageCount x is not a number',
        "BDBMessageStore: messages in a store of the Java broker cannot be read",
        "topic key stocks.us.*: it has no counterpart",
        "topic/alerting/depth 1: it has no counterpart",
        "not in the store: the firewall; --settings DIR writes them for qpidd",
    ):
        assert text in " ".join(done.stderr.split()), text
    again = bring(configuration / "virtualhosts.xml", store, "--vhost", "localhost", "--to-vhost", "/")
    assert "nothing to do" in again.output
    assert bring(configuration / "virtualhosts.xml", tmp_path / "none", "--strict").exit_code == 2
    assert not (tmp_path / "none").exists()


def test_settings_of_the_broker(configuration: Path, tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    done = bring(configuration / "config.xml", tmp_path / "store", "--settings", settings)
    assert done.exit_code == 1, done.output
    assert stat.S_IMODE(settings.stat().st_mode) == 0o700
    assert {each.name for each in settings.iterdir()} == {"qpidd.conf", "users", "firewall", "acl"}
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in settings.iterdir())
    lines = [each for each in (settings / "qpidd.conf").read_text().splitlines() if not each.startswith("#")]
    assert dict(each.split("=") for each in lines) == {
        "port": "5673", "interface": "127.0.0.1", "ssl-port": "8672", "require-encryption": "yes", "mgmt-enable": "yes",
        "log-status": "yes", "user-file": str(settings / "users"), "firewall-file": str(settings / "firewall"),
        "acl-file": str(settings / "acl"),
    }  # fmt: skip
    assert all(each.split("=")[0] in Table(GROUPS).by_name for each in lines)
    users = Users(str(settings / "users"))
    assert users.verify("martin", "password")
    assert users.verify("anna", "password")
    assert (users.tags("martin"), users.tags("anna")) == (("administrator",), ())
    firewall = read_firewall(str(settings / "firewall"))
    cases = {("10.1.1.1", "/"): True, ("192.0.2.1", "/"): False, ("192.0.3.1", "/"): False, ("127.0.0.1", "/"): True}
    cases |= {("192.168.1.1", "localhost"): True, ("10.1.1.1", "localhost"): False, ("10.1.1.1", "test"): True}
    assert {case: firewall.admits(case[0], "", case[1]) for case in cases} == cases
    assert firewall.admits("1.2.3.4", "a.qpid.apache.org", "/")
    acl = read_acl(str(settings / "acl"))
    assert str(acl.rules[0]) == "allow martin@QPID all all"
    notices = " ".join(done.stderr.split())
    for text in (
        "connector/ssl: the keystore is not read, with its certificate and key: convert them to PEM",
        "keystorePassword (not shown): it has no counterpart",
        "broker/connector/transport nio: it has no counterpart",
        "management/jmxport 8999: it has no counterpart",
        "passwd: line 4: not the base64 of an MD5 hash",
        "jmxremote.access, line 2: the rights of anna have no counterpart",
        'default virtual host "localhost": clients that name none get /; --vhost localhost --to-vhost / imports',
        "a rule of <firewall>: '(' is not a regular expression",
        "the access_control_list is for all virtual hosts",
        "6 options, 2 users, the firewall, the access rules written to",
    ):
        assert text in notices, text
    named = {*re.findall(r"--([a-z-]+)", notices)} - {"vhost", "to-vhost"}
    assert named == {"ssl-cert", "ssl-key"} <= Table(GROUPS).by_name.keys()
    assert "keystorepass" not in done.output
    refused = bring(configuration / "config.xml", tmp_path / "other", "--settings", settings)
    assert refused.exit_code == 2
    assert "exists; choose another name" in refused.stderr


def test_a_running_broker_gets_its_virtual_hosts(configuration: Path, tmp_path: Path, make_broker: BrokerMaker) -> None:
    settings, text = tmp_path / "settings", CONFIG
    for old in ("<enabled>true</enabled><sslOnly>true</sslOnly>", '<rule access="allow" hostname="("/>'):
        text = text.replace(old, "")
    (configuration / "config.xml").write_text(text.replace("<port>5673</port>", ""))
    (configuration / "virtualhosts.xml").write_text(VIRTUAL_HOSTS.replace("192.168.1.0/24", "127.0.0.0/8"))
    bring(configuration / "config.xml", tmp_path / "store", "--settings", settings)
    broker = make_broker("--config", str(settings / "qpidd.conf"), "--auth", "yes").start()
    done = bring(configuration / "config.xml", f"amqp://martin/password@127.0.0.1:{broker.port}", "--json")
    assert done.exit_code == 1, done.output
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["objects_refused"] == 0, done.output
    credentials = pika.PlainCredentials("martin", "password")
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, "test", credentials)) as client:
        channel = client.channel()
        channel.basic_publish("amq.direct", "devqueue", b"hello")
        assert channel.basic_get("devqueue", auto_ack=True)[2] == b"hello"


def test_files_in_several_parts_and_rules_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.xml").write_text(
        '<configuration><system/><xml fileName="one.xml"/><xml fileName="two.xml"/><xml fileName="none.xml"/>'
        "</configuration>"
    )
    (tmp_path / "one.xml").write_text("<broker><connector><port>1234</port></connector></broker>")
    (tmp_path / "two.xml").write_text(
        "<broker><connector><port>5\nauth=no</port></connector><status-updates>off</status-updates>"
        '<security><firewall><rule access="deny" hostname="("/></firewall></security>'
        "<virtualhosts><virtualhost><name>v</name><v><queue><name>q</name></queue></v></virtualhost></virtualhosts></broker>"
    )
    done = bring(tmp_path / "config.xml", tmp_path / "store", "--settings", tmp_path / "settings")
    assert done.exit_code == 1, done.output
    conf = (tmp_path / "settings" / "qpidd.conf").read_text()
    assert "port=1234\n" in conf
    assert "auth=no" not in conf
    assert "log-status=no\n" in conf
    denies_all = "deny network 0.0.0.0/0,::/0\n"  # a rule that may deny is not left out
    assert (tmp_path / "settings" / "firewall").read_text() == denies_all
    assert "there is no file none.xml" in done.stderr
    assert [each["name"] for each in stored(tmp_path / "store", tmp_path)["queue"]] == ["v\x1fq"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<broker>", "line 1: not well-formed XML"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><broker>&b;</broker>", "a document type is not allowed"),
        ("<broker>" + "<a>" * 40, "too many elements"),
        ("<virtualhosts><virtualhost/></virtualhosts>", "this virtual host has no name"),
        ("<broker>" + " " * (4 << 20) + "</broker>", "is larger than 4,194,304 bytes"),
        ('<?xml version="1.0" encoding="odd"?><broker/>', "line"),
    ],
)
def test_files_that_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.xml").write_text(text)
    done = bring(tmp_path / "config.xml", tmp_path / "store")
    assert done.exit_code == 2
    assert reason in done.stderr
    assert not (tmp_path / "store").exists()


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_broker, "MAX_QUEUES", 1)
    monkeypatch.setattr(java_broker, "MAX_FILES", 1)
    queues = "<queue><name>a</name></queue><queue><name>b</name></queue>"
    (tmp_path / "v.xml").write_text(
        f"<virtualhosts><virtualhost><name>v</name><v>{queues}</v></virtualhost></virtualhosts>"
    )
    assert "more than 1 queues" in bring(tmp_path / "v.xml", tmp_path / "store").stderr
    (tmp_path / "config.xml").write_text("<broker><virtualhosts>v.xml</virtualhosts></broker>")
    assert "more than 1 files" in bring(tmp_path / "config.xml", tmp_path / "store").stderr
    done = bring(tmp_path / "v.xml", tmp_path / "store", "--vhost", "w")
    assert "there is no virtual host 'w'; there are v" in done.stderr
    monkeypatch.setattr(java_broker, "MAX_TOTAL", 60)
    monkeypatch.setattr(java_broker, "MAX_FILES", 2)
    assert "configuration are larger than 60 bytes" in bring(tmp_path / "config.xml", tmp_path / "store").stderr


def test_a_store_of_the_java_broker_is_not_read_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "work/derbyDB/test/seg0").mkdir(parents=True)
    (tmp_path / "work/derbyDB/test/service.properties").write_text("x")
    done = bring(tmp_path / "work", tmp_path / "store")
    assert done.exit_code == 2
    assert f"{tmp_path}/work/derbyDB/test: this is a Derby store of Apache's Java broker" in done.stderr
    assert "drain its queues with a client or a shovel while that broker runs" in done.stderr
    (tmp_path / "definitions.json").write_text('{"queues": [], "vhosts": []}')
    assert bring(tmp_path / "definitions.json", tmp_path / "other").exit_code == 0
    done = bring(tmp_path / "other", tmp_path / "store")
    assert "this is a store; qstore-export writes a file of its messages" in done.stderr
    assert not (tmp_path / "store").exists()


def test_settings_are_for_this_configuration_only(tmp_path: Path) -> None:
    (tmp_path / "definitions.json").write_text('{"queues": [], "vhosts": []}')
    done = bring(tmp_path / "definitions.json", tmp_path / "store", "--settings", tmp_path / "settings")
    assert done.exit_code == 2
    assert "--settings is for the configuration of the Java broker only" in done.stderr
    (tmp_path / "v.xml").write_text("<virtualhosts/>")
    (tmp_path / "settings").mkdir()
    done = bring(tmp_path / "v.xml", tmp_path / "store", "--settings", tmp_path / "settings")
    assert (done.exit_code, "exists; choose another name" in done.stderr) == (2, True)
    assert not (tmp_path / "store").exists()  # nothing was imported


FIREWALL = (
    '<broker><security><firewall default-action="allow">{}<rule access="allow" network="10.0.0.0/8"/></firewall>'
    "</security></broker>"
)


@pytest.mark.parametrize(
    ("config", "part", "lines"),
    [
        (
            FIREWALL.format('<xml fileName="part.xml"/>'),
            '<firewall default-action="deny"><rule access="deny" network="192.0.2.1"/><xml fileName="x"/></firewall>',
            ["deny network 192.0.2.1", "deny network 0.0.0.0/0,::/0", "default deny", "allow network 10.0.0.0/8"],
        ),
        (
            FIREWALL.format('<rule access="allow" network="192.0.2.1"/><rule access="deny" hostname="("/>'),
            "",
            ["allow network 192.0.2.1", "deny network 0.0.0.0/0,::/0", "allow network 10.0.0.0/8", "default allow"],
        ),
        (
            FIREWALL.format("").replace(
                "</broker>",
                '<virtualhosts><virtualhost><name>a b</name><security><firewall default-action="allow"/></security>'
                "</virtualhost></virtualhosts></broker>",
            ),
            "",
            ["deny network 0.0.0.0/0,::/0", "allow network 10.0.0.0/8", "default allow"],
        ),
        (
            FIREWALL.format(
                "".join(f'<rule access="allow" network="10.0.{each >> 8}.{each & 255}"/>' for each in range(1000))
            ),
            "",
            ["default deny"],
        ),
    ],
)
def test_a_firewall_that_is_not_known_is_closed(config: str, part: str, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "config.xml").write_text(config)
    (tmp_path / "part.xml").write_text(part)
    assert bring(tmp_path / "config.xml", tmp_path / "store", "--settings", tmp_path / "settings").exit_code == 1
    written = tmp_path / "settings" / "firewall"
    assert written.read_text().splitlines() == lines
    read_firewall(str(written))  # the broker can use it


def test_variables_do_not_grow_without_bound(tmp_path: Path) -> None:
    prefix, work = "x" * 4096, "${prefix}" * 10_000
    (tmp_path / "config.xml").write_text(
        f"<broker><prefix>{prefix}</prefix><work>{work}</work><virtualhosts>${{work}}</virtualhosts></broker>"
    )
    done = bring(tmp_path / "config.xml", tmp_path / "store")
    assert done.exit_code == 2
    assert "a name of a file is longer than 4,096 characters" in done.stderr
    (tmp_path / "config.xml").write_text(f"<broker><virtualhosts>{'x' * 300}</virtualhosts></broker>")
    done = bring(tmp_path / "config.xml", tmp_path / "store")
    assert (done.exit_code, "there is no file xxx" in done.stderr) == (1, True)
