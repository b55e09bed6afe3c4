"""The start plan: the options from all sources, and the settings derived from them.

The environment and the configuration file are read first, which needs only `--config` of the command line. Then the
modules that the sources name are loaded, and with them all options are known. Then all sources are parsed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Final

from qstore.broker.federation.link import remotes_in
from qstore.broker.log.logs import LogError, Rules, enabled_rules, parse_rule
from qstore.broker.log.sinks import LineFormat, Logging, Sinks, has_syslog
from qstore.broker.log.status_rules import StatusRule, read_rules
from qstore.broker.model.memory import default_ceiling
from qstore.broker.model.store_protocol import StoreModule
from qstore.broker.process.held_files import default_data_directory
from qstore.broker.process.modules import ModulesFound, load_store, modules_in, options_elsewhere, options_of
from qstore.broker.process.option_table import GROUPS, OptionError, shown
from qstore.broker.process.options import Table, Values, open_sources, read_sources, seconds_of
from qstore.broker.process.paging import NAME as PAGING_NAME
from qstore.broker.protocols.table import VERSIONS
from qstore.broker.security.authentication import unusable
from qstore.broker.security.sasl.kerberos import has_keytab
from qstore.broker.settings import LOOPBACK, MAX_UNFINISHED_BYTES, BrokerSettings, TlsSettings
from qstore.formats.named_tuple import NamedTuple

_is_release: Final = re.compile(r"\d{1,3}(\.\d{1,4}){1,2}([-+.][0-9A-Za-z.]{1,40})?", re.ASCII).fullmatch

_MAX_INTERVAL: Final = 86_400 * 7  # seconds between two logs of statistics
_MAX_INTERVALS: Final = 4
_MIN_MAINTENANCE: Final = 0.05  # seconds
_QUEUE_SHARE: Final = 8  # of the memory ceiling is the default for one queue: 1/8
_STREAMS: Final = ("stderr", "stdout", "syslog")
"""The values of `log-output` that are not file names."""


class StartPlan(NamedTuple):
    """The components to start, and their settings.

    Attributes:
        values: the values of all options.
        table: the known options.
        module: the store's module; None if none is loaded.
        module_values: the values given for the store's options.
        warnings: for the log, one line each.
        configuration: path of the configuration file; empty if there is none.
        again: makes the plan again, as the configuration file is then. Raises as `make_plan`.
    """

    values: Values
    table: Table
    module: StoreModule | None
    module_values: Mapping[str, str]
    warnings: Sequence[str]
    configuration: str
    again: Callable[[], StartPlan]

    @property
    def is_daemon(self) -> bool:
        """Whether to run as a daemon."""
        return self.values.switch("daemon")

    @property
    def data_directory(self) -> str | None:
        """The data directory; None with --no-data-dir."""
        if self.values.switch("no-data-dir"):
            return None
        return self.values.text("data-dir") or default_data_directory(is_daemon=self.is_daemon)


def make_plan(arguments: Sequence[str], variables: Mapping[str, str]) -> StartPlan:
    """Make the plan from a command line, the environment, and the configuration file.

    Raises:
        OptionError: an option is unknown, invalid or not supported.
        ModuleError: a module cannot be loaded.
    """
    sources = open_sources(arguments, variables)
    directory = sources.module_directory()
    found = ModulesFound() if directory is None else modules_in(directory)
    module = load_store([*sources.modules(), *found.names])
    added = None if module is None else options_of(module)
    table = Table(GROUPS, options_elsewhere()) if added is None else Table((*GROUPS, added.group))
    options = read_sources(sources, table)
    values = Values(table, options.given)
    values.check()
    _check_rules(values)
    _mechanisms(values)
    _protocols(values)
    _tls(values)
    module_values = {} if added is None else added.given(options.given)
    warnings = [*options.warnings, *found.warnings]
    again = partial(make_plan, arguments, variables)
    return StartPlan(values, table, module, module_values, warnings, sources.file.path, again)


def _check_rules(values: Values) -> None:
    for one in (*values.given("log-enable"), *values.given("log-disable")):
        try:
            parse_rule(one.text)
        except LogError as error:
            raise OptionError(f"{one.place}: {error}") from None


def start_logging(values: Values, *, is_daemon: bool) -> Logging:
    """Configure the log by the options.

    Raises:
        OptionError: the options name two log files.
        LogError: the log cannot be written.
    """
    rules = Rules(enabled_rules(values.texts("log-enable"), trace=values.switch("trace")), values.texts("log-disable"))
    parts = LineFormat(
        time=values.switch("log-time"),
        level=values.switch("log-level"),
        category=values.switch("log-category"),
        source=values.switch("log-source"),
        thread=values.switch("log-thread"),
        function=values.switch("log-function"),
        hires_timestamp=values.switch("log-hires-timestamp"),
        prefix=values.text("log-prefix") or "",
    )
    return Logging(rules, _sinks(values, is_daemon=is_daemon), parts)


def has_lost_log(values: Values) -> bool:
    """Whether a daemon has no log, though it was not disabled: there is no syslog, and no log file is given."""
    sinks = _sinks(values, is_daemon=True)
    return sinks.file is None and not sinks.syslog and not values.is_given("log-to-syslog")


def _sinks(values: Values, *, is_daemon: bool) -> Sinks:
    output, file = values.text("log-output"), values.text("log-to-file")
    if output is not None and output not in _STREAMS:
        if file not in (None, output):
            raise OptionError("--log-output and --log-to-file name different files; remove one of them")
        file = output

    def logs_to(stream: str, *, otherwise: bool) -> bool:
        if values.is_given(f"log-to-{stream}"):
            return values.switch(f"log-to-{stream}")
        return otherwise if output is None else stream == output

    return Sinks(
        stderr=logs_to("stderr", otherwise=True) and not is_daemon,
        stdout=logs_to("stdout", otherwise=False) and not is_daemon,
        file=file,
        syslog=logs_to("syslog", otherwise=is_daemon and file is None and has_syslog()),
        syslog_name=values.word("syslog-name"),
        syslog_facility=values.word("syslog-facility"),
    )


def _mechanisms(values: Values) -> tuple[str, ...]:
    """The SASL mechanisms to offer. Raises OptionError."""
    text = values.text("sasl-mechanisms")
    names = _listed("--sasl-mechanisms", (text or "").upper(), is_given=text is not None)
    for line in unusable(names):
        raise OptionError(f"--sasl-mechanisms: {line}")
    return tuple(dict.fromkeys(names))


def _listed(option: str, text: str, *, is_given: bool) -> tuple[str, ...]:
    """The names in a list. Raises OptionError if one is given without any: the default would apply."""
    names = tuple(text.replace(",", " ").split())
    if is_given and not names:
        raise OptionError(f"{option}: the value must name at least one")
    return names


def _rabbitmq_version(values: Values) -> str:
    """The release of RabbitMQ that clients of AMQP 1.0 are told; empty for none. Raises OptionError."""
    text = values.text("rabbitmq-version") or ""
    if text and not _is_release(text):
        raise OptionError(f'--rabbitmq-version: "{shown(text)}" is not a release of RabbitMQ, such as 4.1.0')
    return text


def _protocols(values: Values) -> tuple[str, ...]:
    """The versions of AMQP to offer, which may have qpidd's names: amqp0-10. Raises OptionError."""
    text = values.text("protocols")
    words = _listed("--protocols", text or "", is_given=text is not None)
    names = tuple(dict.fromkeys(word.removeprefix("amqp") for word in words))
    for name in names:
        if name not in VERSIONS:
            raise OptionError(f"--protocols: {name!a} is not supported; the versions of AMQP are {', '.join(VERSIONS)}")
    return names


def _tls(values: Values) -> TlsSettings | None:
    """The settings of TLS; None without a certificate. Raises OptionError."""
    certificate, authorities = values.text("ssl-cert"), values.text("ssl-ca")
    requires_certificate = values.switch("ssl-require-client-authentication")
    if certificate is None:
        needy = [name for name in ("ssl-key", "ssl-ca", "ssl-port", "ssl-cert-password-file") if values.is_given(name)]
        needy += [
            name for name in ("require-encryption", "ssl-require-client-authentication", "ssl-sasl-no-dict")
            if values.switch(name) and not (name == "require-encryption" and values.switch("auth") and has_keytab())
        ]  # fmt: skip
        for name in needy:
            raise OptionError(f"--{name} needs a certificate: give --ssl-cert, and --ssl-key if the key is not in it")
        return None
    if requires_certificate and authorities is None:
        raise OptionError("--ssl-require-client-authentication needs --ssl-ca: the authorities of the certificates")
    return TlsSettings(
        certificate, values.text("ssl-key"), values.text("ssl-cert-password-file"), authorities,
        requires_certificate, values.number("ssl-port"),
    )  # fmt: skip


def _paging_directory(given: str | None, data_directory: str | None) -> str | None:
    if given is not None:
        return str(Path(given).absolute())
    return None if data_directory is None else str(Path(data_directory, PAGING_NAME))


def settings_of(values: Values, data_directory: str | None) -> BrokerSettings:
    """The broker's settings from its options. A message may take at most a quarter of the memory ceiling."""
    given = values.size("broker-memory")
    memory = default_ceiling() if given is None else given
    max_bytes = memory // 4 or sys.maxsize
    queue_memory = values.size("queue-memory")
    return BrokerSettings(
        port=values.number("port"),
        protocols=_protocols(values),
        interfaces=values.texts("interface") or LOOPBACK,
        backlog=values.number("connection-backlog"),
        data_directory=data_directory,
        auth=values.switch("auth"),
        realm=values.word("realm"),
        user_file=values.text("user-file"),
        sasl_mechanisms=_mechanisms(values),
        auth_allow_cleartext=values.switch("auth-allow-cleartext"),
        ssl_sasl_no_dict=values.switch("ssl-sasl-no-dict"),
        require_encryption=values.switch("require-encryption"),
        tls=_tls(values),
        websocket=values.switch("websocket"),
        websocket_origins=values.texts("websocket-origin"),
        max_connections=values.number("max-connections"),
        acl_file=_acl_file(values.text("acl-file"), data_directory),
        firewall_file=values.text("firewall-file") or None,
        access=values.word("access"),
        acl_validation=values.word("strict-acl-validation"),
        strict_virtual_hosts=values.word("virtual-hosts") == "strict",
        connections_per_user=values.number("connection-limit-per-user"),
        connections_per_host=values.number("connection-limit-per-ip"),
        queues_per_user=values.number("max-queues-per-user"),
        negotiate_seconds=values.number("max-negotiate-time") / 1000,
        max_message_bytes=min(values.size("max-message-size") or max_bytes, max_bytes),
        max_unfinished_bytes=min(MAX_UNFINISHED_BYTES, max_bytes),
        memory_bytes=memory,
        queue_memory_bytes=memory // _QUEUE_SHARE if queue_memory is None else queue_memory,
        paging_directory=_paging_directory(values.text("paging-dir"), data_directory),
        max_paging_bytes=values.size("max-paging-size") or 0,
        staging_bytes=values.size("staging-threshold") or 0,
        deliver_before_sync=values.switch("deliver-before-sync"),
        queue_limit_bytes=values.size("default-queue-limit"),
        default_queue_policy=values.word("default-queue-policy"),
        strict_durability=values.switch("strict-durability"),
        enable_timestamp=values.switch("enable-timestamp"),
        tcp_nodelay=values.switch("tcp-nodelay"),
        queue_purge_seconds=values.seconds("queue-purge-interval"),
        max_session_rate=values.number("max-session-rate"),
        flow_stop_percent=values.number("default-flow-stop-threshold"),
        flow_resume_percent=values.number("default-flow-resume-threshold"),
        event_threshold_percent=values.number("default-event-threshold-ratio"),
        dtx_default_timeout_seconds=values.number("dtx-default-timeout"),
        dtx_max_timeout_seconds=values.number("dtx-max-timeout"),
        default_message_group=values.word("default-message-group"),
        federation_tag=values.text("federation-tag") or None,
        rabbitmq_version=_rabbitmq_version(values),
        link_maintenance_seconds=max(_MIN_MAINTENANCE, values.seconds("link-maintenance-interval")),
        link_heartbeat_seconds=ceil(values.seconds("link-heartbeat-interval")),
        known_hosts=known_hosts_of(values),
        management=values.switch("mgmt-enable"),
        management_publish=values.switch("mgmt-publish"),
        management_version_1=values.switch("mgmt-qmf1"),
        management_version_2=values.switch("mgmt-qmf2"),
        console=values.text("console"),
        console_credentials=values.text("console-credentials"),
        telemetry=values.text("telemetry"),
        telemetry_limit=values.number("telemetry-limit"),
        log_statistics=_intervals(values),
        log_status=values.switch("log-status"),
        log_status_rules=_status_rules(values),
        heartbeat_seconds=values.number("mgmt-pub-interval"),
        replication_queue=values.text("replication-queue"),
        create_replication_queue=values.switch("create-replication-queue"),
        replication_listener=values.word("replication-listener-name"),
        replication_exchange=values.text("replication-exchange-name"),
        replication_exchange_type=values.word("replication-exchange-type"),
    )


def known_hosts_of(values: Values) -> str:
    """The URL for clients; empty for none. Raises OptionError."""
    url = values.text("known-hosts-url")
    if url is None or url == "none":
        return ""
    if not remotes_in(url):
        raise OptionError(f"--known-hosts-url: {url!a} has no address, as in amqp:tcp:broker1:5672,tcp:broker2:5672")
    return url


def _intervals(values: Values) -> tuple[float, ...]:
    """The intervals of `log-statistics`. Raises OptionError."""
    text = values.text("log-statistics")
    if text is None:
        return ()
    found = tuple(sorted({seconds_of(each) or 0.0 for each in re.split(r"[ ,]+", text)}))
    if not 1 <= found[0] <= found[-1] <= _MAX_INTERVAL or len(found) > _MAX_INTERVALS:
        raise OptionError(
            f"--log-statistics: {text!a} is not one to {_MAX_INTERVALS} intervals of 1 to {_MAX_INTERVAL:,} seconds"
        )
    if not values.switch("mgmt-enable"):
        raise OptionError("--log-statistics needs management: remove mgmt-enable=no")
    return found


def _status_rules(values: Values) -> tuple[StatusRule, ...]:
    try:
        return read_rules(values.texts("log-status-rule"))
    except ValueError as error:
        raise OptionError(f"--log-status-rule: {error}") from None


def _acl_file(name: str | None, data_directory: str | None) -> str | None:
    """The full name of the ACL file: one without / at the beginning is in the data directory, if it is there."""
    if name is None:
        return None
    there = None if data_directory is None else Path(data_directory, name)
    return str(there if there is not None and there.exists() else Path(name).absolute())
