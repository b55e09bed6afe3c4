"""What the documents that qstore was built from name: feature, source, the test that shows it, and how far it is.

    python -m tests.conformance.seed_features          all rows, and the sums
    python -m tests.conformance.seed_features missing  those of one state: works, partly, missing, elsewhere, n/a
    python -m tests.conformance.seed_features names    the arguments and options that they name, in the same form

A row is a line `MARK feature; DOCUMENT:LINE ...`, with marks as in `STATES`, where a line may be a range, and more
lines, indented: tests as paths below `tests`, with `::`; after `=`, what is missing, or why it does not apply. What is
`elsewhere` is missing, too: it is work of its own, with a design that this table does not judge.

The documents, which are not part of this repository: 000 Qpid C++ Broker Book; 001 Qpid management, design and protocol
(QMF 1); 002 iMatix, AMQP/Fast; 003 MRG Messaging User Guide 2; 004 Qpid wiki.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple

STATES: Final = {"+": "works", "~": "partly", "-": "missing", ">": "elsewhere", "/": "n/a"}
LINES: Final = {"000": 4368, "001": 901, "002": 3052, "003": 1872, "004": 37529}
"""How many lines the documents have."""

TABLE: Final = """
== Process and options
+ help, with the options of loaded modules; 000:161-177 000:243-390 004:24938-24942
    system/test_qpidd_start.py::test_help_shows_a_module_s_options_when_it_is_loaded
+ configuration file: name=value, comments; 000:199-211 000:253 004:27843-27862
    broker/test_options_sources.py::test_a_file_in_the_documents_form
+ environment: QPID_LOAD_MODULE and the other options; 004:1264-1272
    broker/test_options_sources.py::test_variables
+ defaults; those that differ are listed with the reason; 000:245-390 003:673-682 004:27900-27963
    broker/test_documented_defaults.py::test_the_manual_has_each_default_that_differs_with_both_values
+ durations with units; 000:2865
    broker/test_options.py::test_durations
+ names on which the documents do not agree (realm and auth-realm, ...); 000:2137 000:2762-2767 000:1134-1163
    broker/test_options.py::test_names_that_the_documents_do_not_agree_on
+ port, several brokers on a host; 000:197 000:267
    system/test_qpidd_start.py::test_two_daemons_and_one_of_them_ends
+ max-connections; 000:271 000:2030-2032
    broker/test_server_sockets.py::test_no_more_connections_than_allowed
+ connection-backlog; 000:273-275 004:27924
    broker/test_server_sockets.py::test_as_many_clients_as_may_connect_can_come_at_once
+ staging-threshold; 000:276 004:22782 004:27929
    broker/test_paged_queues.py::test_large_messages_leave_memory_unless_they_are_consumed_at_once
+ tcp-nodelay; 004:11365 004:11992
    broker/test_server_sockets.py::test_small_segments_go_out_at_once_or_not
+ watchdog-interval; 003:896 004:1971-1979
    system/test_watchdog.py::test_a_broker_whose_event_loop_stands_still_is_killed
+ max-session-rate, by the credit of 0-10 or by reading no further; 004:24696-24705 004:23131
    broker/protocols/test_session_rates.py::test_a_session_is_held_to_its_rate
    broker/protocols/test_session_rates.py::test_a_client_that_obeys_flow_control_gets_credit
    system/test_broker_flow_control.py::test_senders_of_the_client_are_held_to_the_rate_of_their_session
/ worker-threads; 000:269 004:24828-24847
    = one event loop; the option is accepted, and its report says so
/ ack: solicited acknowledgements every N frames; 000:282-285
    = completions are sent with the replies; the option is accepted, and its report says so
+ daemon: -d, --wait, --check, --quit; 000:167-173 000:290-300 004:27799-27809
    system/test_qpidd_start.py::test_a_daemon_is_ready_when_its_starter_returns
    broker/test_daemon.py::test_a_process_is_ended
+ a failed start of a daemon is reported by its parent; 004:10958 004:11023
    broker/test_daemon.py::test_a_child_that_cannot_start
+ data-dir: made, checked, refused; 000:181-189 004:27819-27831
    broker/test_data_dir.py::test_directories_that_cannot_be_used
+ one broker on a data directory, also after a kill; 000:191-195 003:648 004:11464 004:12092
    system/test_qpidd_start.py::test_two_brokers_on_one_directory
    system/test_qpidd_start.py::test_a_killed_broker_s_directory_needs_no_tidying
+ no-data-dir; 000:264 003:682
    system/test_qpidd_start.py::test_no_data_directory
+ pid-dir, directories by user; 004:11297-11304
    broker/test_daemon.py::test_default_pid_directory_depends_on_the_user
+ modules: load-module, module-dir, no-module-dir, qpidd's names; 000:255-260 000:366 004:26689-26696
    broker/test_modules.py::test_every_name_of_qpidd_s_stores_is_this_one
+ enable-timestamp, also by management; 000:394-427
    conformance/test_queue_publishing.py::test_each_message_has_the_time_at_which_it_came
    broker/test_management.py::test_timestamps_are_switched
+ sockets are bounded: a reader that does not read stops nobody; 004:4586-4673 004:22121-22172
    broker/test_server_pressure.py::test_client_that_does_not_read_costs_little
/ RDMA transport; 000:858 000:2855-2863 004:650 004:814
    = InfiniBand hardware; the module and the transport are refused by name
/ Windows service, accounts and SQL store; 000:235-239 004:945 004:35616
    = the broker needs Linux

== Logs
+ log-enable, log-disable: levels, categories, functions; 000:302-342 000:439-511 000:579-594
    broker/test_logs.py::test_the_rules_that_qpidd_s_manual_has_for_its_line
+ a rule that disables wins; 000:513-528
    broker/test_logs.py::test_disabling_rule_wins_over_enabling_rule
+ qpidd's lines: time, category, level, function; 000:343-350 000:572-575
    broker/test_logs.py::test_lines_look_like_qpidd_s
+ sinks: stderr, stdout, file, syslog with name and facility; 000:351-359 004:11278
    broker/test_logs.py::test_syslog
    broker/test_plan.py::test_where_the_log_goes
+ getLogLevel, setLogLevel; 000:530-564
    broker/test_management_methods.py::test_the_log_is_changed
+ operational log: BRK, MNG-1001 to 1006, VHT, MST, CON, CHN, QUE, EXH, BND, SUB; 004:6187-6294 004:31165-31257
    system/test_broker_status_log.py::test_every_message_is_written
+ operational log: CHN-1004 to 1006, QUE-1003, QUE-1004, SUB-1003, MNG-1007, MNG-1008; 004:31185-31250 004:34259-34291
    broker/test_status_log.py::test_flow_control_of_queues_and_their_publishers
    system/test_broker_status_log.py::test_every_message_is_written
+ operational log: switched while the broker runs; 004:5935-5947
    system/test_broker_status_log.py::test_management_switches_it
+ operational log: levels for single objects, with wildcards; 004:8859-8939
    broker/test_status_log.py::test_rules_show_and_hide_lines_by_their_objects
+ passwords are never logged; 004:10387 004:10603 004:11925
    system/test_qpidd_start.py::test_passwords_are_not_logged
+ a log whose disk fails; 004:6775
    broker/test_logs.py::test_a_file_that_cannot_be_written
+ statistics at intervals: rates, totals, peaks, average sizes, levels of each object; 004:5611-5727 000:471
    broker/test_periodic_log.py::test_rates_totals_peaks_and_sizes_of_a_queue
    system/test_broker_status_log.py::test_statistics_are_logged_at_intervals
    tools/web/test_collector.py::test_rates_are_of_one_to_two_intervals
    broker/test_statistics.py::TestQueue::test_high_and_low_water_marks
    broker/test_topology.py::test_what_was_counted_of_a_deleted_queue_and_exchange_is_in_the_log
/ appenders of log4j, XML log configuration; 004:30886-30981 004:29327-29356
    = of the Java broker's logging library

== Authentication and encryption
+ auth, realm, user-id@realm; 000:239 000:1076-1098 003:1254-1270
    system/test_qpidd_start.py::test_auth_with_a_user_file
+ ANONYMOUS, PLAIN, CRAM-MD5, DIGEST-MD5, EXTERNAL; 000:1066-1074 000:2602-2632 004:17991-18024
    conformance/test_authentication.py::test_the_client_speaks_every_mechanism
+ AMQPLAIN; 000:2634-2655 004:18026
    conformance/test_authentication.py::test_a_client_that_knows_only_amqplain
+ CRAM-MD5-HASHED; 000:2651 004:18028-18032
    broker/security/test_mechanisms.py::test_cram_md5_hashed_has_the_key_of_java_clients
+ CRAM-MD5 and CRAM-MD5-HASHED for users of a Base64MD5 file; 004:30472-30479
    broker/security/test_mechanisms.py::test_cram_md5_hashed_has_the_key_of_java_clients
+ CRAM-MD5-HEX; 004:11340-11342
    broker/security/test_mechanisms.py::test_cram_md5_hex_has_the_hash_in_hexadecimal
+ Kerberos: GSSAPI; 000:1122-1188 003:1286-1342
    system/test_kerberos.py::test_a_ticket_lets_its_principal_in
+ Kerberos: security layer; 004:24593-24608
    system/test_kerberos.py::test_a_layer_protects_what_follows_the_login
    broker/protocols/test_security_layers.py::test_everything_after_the_login_goes_through_the_layer
+ sasldb, imported; 000:223-233 000:1100-1118 003:1271-1283 004:27874-27898
    broker/security/test_user_file.py::test_a_sasldb_is_imported
+ users added, removed, listed; 000:225-231 000:1110-1118
    broker/security/test_user_file.py::test_the_command_lists_and_verifies
+ Plain and Base64MD5 password files, imported; 004:30378-30470
    broker/security/test_user_file.py::test_the_java_broker_s_files_are_imported
+ users managed over QMF; 004:22720-22752 004:29365-29381
    broker/test_management_access.py::test_users_and_permissions
+ changes of users are atomic; 004:25262-25264
    broker/test_permissions.py::test_changes_of_users_at_the_same_time_lose_none
+ failed logins are logged and answered; 000:3181-3187 004:5355 004:5834-5837
    broker/protocols/test_connection.py::test_a_failed_login_is_reported_without_the_password
/ Cyrus SASL's configuration; 000:223 000:1088 003:1263
    = the broker implements SASL itself
+ TLS: certificate, key password, ssl-port; 000:2147-2169 003:1516-1537 004:18042-18069
    conformance/test_tls.py::test_a_port_of_its_own
    broker/security/test_tls.py::test_a_key_with_a_password
+ client certificates: required, and the user in them; 000:2170-2176 003:1538-1541
    conformance/test_tls.py::test_each_client_must_have_a_certificate
    broker/security/test_tls.py::test_users_in_certificates
+ ssl-sasl-no-dict; 000:2178-2180 003:1542
    broker/security/test_offers.py::test_no_dictionary_attacks_over_tls
+ require-encryption; 000:2180 000:2200 003:1544
    conformance/test_tls.py::test_only_encrypted_connections
/ NSS certificate databases; 000:2147-2168 003:1521-1535
    = the options are refused with the commands that export a PEM file

== Access control
+ ACL file: grammar, groups, continuation, comments; 000:1250-1280 000:1409-1471 003:1385-1490 004:18705-18770
    broker/test_acl_reader.py::test_the_book_s_example
    broker/test_acl_reader.py::test_every_error_is_reported_with_its_line
+ first match, modes, deny by default; 000:1198-1210 000:1610-1698 003:1350-1374
    broker/test_acl_engine.py::test_the_first_rule_that_matches_decides
    broker/test_acl_engine.py::test_without_a_rule_it_is_denied
+ the table of lookups; 000:1317-1407 000:1860-1962 004:18828-18863
    broker/test_acl_engine.py::test_the_lookups_are_those_of_the_manual
+ rules that never match are reported; 000:1353-1363 000:1767-1798
    broker/test_acl_reader.py::test_rules_without_effect_are_warned_of
+ wildcards, routing keys as by a topic exchange; 000:1569-1608
    broker/test_acl_engine.py::test_routing_keys_are_matched_as_by_a_topic_exchange
+ ${user}, ${domain}, ${userdomain}; 000:1485-1502
    broker/test_acl_engine.py::test_substitution
+ limits of queues, files and pages; 000:1325-1343
    broker/test_acl_engine.py::test_limits_of_files_and_of_denying_rules
+ messages are checked only if a rule is about them; 000:1243 004:18877-18889
    broker/test_acl_engine.py::test_messages_are_checked_only_if_a_rule_is_about_them
+ allow-log, deny-log; 000:1284-1289 004:18891-18898
    broker/test_acl_control.py::test_a_denial_is_counted_and_with_log_it_is_reported
+ a file read again; 000:2050 003:1479
    broker/test_acl_control.py::test_new_rules_hold_for_clients_that_are_there
+ quotas of connections and queues, limits by user and address; 000:2030-2051 000:2118-2139
    broker/test_acl_control.py::test_limits_of_users
    broker/test_acl_control.py::test_queues_of_a_user
+ hosts that may connect; 000:2053-2114
    broker/test_acl_control.py::test_where_a_user_may_connect_from
+ strict-acl-validation; 004:18772-18794
    system/test_qpidd_start_options.py::test_rules_without_effect_end_the_start_if_the_validation_is_strict
+ ACL version 1, XML; 004:30501-30818
    broker/test_acl_reader.py::test_version_1
+ ACL version 3; 004:22308-22442
    broker/test_acl_reader.py::test_version_3
    broker/test_acl_reader.py::test_temporary_and_owner_of_version_3
    broker/test_acl_reader.py::test_transitive_rules_of_version_3
    broker/test_acl_reader.py::test_expanded_rules_of_version_3
+ firewall: networks, host name patterns, default action; 004:13483-13536 004:31864-31989
    system/test_firewall.py::test_networks_decide_and_the_file_is_read_again
    system/test_firewall.py::test_the_name_of_the_host_decides_and_without_one_nobody_gets_in
    system/test_firewall.py::test_a_virtual_host_has_rules_of_its_own
/ authorization by votes of plug-ins; 004:9466-9490
    = an interface of the Java broker

== Exchanges and bindings
+ direct; 000:776 003:284-287
    broker/test_exchanges_common.py::TestDirect::test_routes_by_the_very_key
+ topic; 003:296-320
    broker/test_exchanges_topic.py::test_by_hand
+ fanout; 003:277-280
    broker/test_exchanges_common.py::TestFanout::test_fanout_ignores_the_key
+ headers, x-match; 003:324-325 004:13547 004:29430-29452
    broker/test_exchanges_headers.py::TestAllAndAny::test_all
+ the default exchange; 003:291-292
    broker/test_exchanges_common.py::TestDefault::test_by_name
+ standard exchanges; 000:3381-3397
    broker/test_exchanges_common.py::TestTypes::test_standard
+ xml, with XQuery; 003:327-353 004:910-912 004:10815
    broker/protocols/test_exchange_types.py::test_xml_binding
    broker/test_xquery.py::test_the_examples_of_the_guides_and_of_qpidds_tests
+ types of plug-ins; 002:1700-1708 004:24577-24591
    system/test_exchange_types.py::test_a_package_adds_an_exchange_type
+ an unknown type is refused by its name; 000:2403 004:13078
    conformance/test_exchanges.py::TestDeclare::test_types_that_are_not_there
+ declare: passive, again, alternate exchange; 003:357-377
    broker/test_topology.py::TestDeclareExchange::test_declaring_again_with_other_properties
+ unroutable messages: alternate exchange, discard, return; 003:332-334 003:366-367 004:30169
    conformance/test_queue_publishing.py::test_unroutable_message_goes_to_the_alternate_exchange_unless_it_may_be_discarded
+ qpid.msg_sequence; 000:690-723 003:378 004:12638-12662
    conformance/test_exchange_options.py::TestSequence::test_messages_are_numbered_from_0_in_an_int64
+ qpid.ive; 000:725-739 003:380 004:12664-12680
    conformance/test_exchange_options.py::TestInitialValue::test_late_binding_gets_the_last_message
+ qpid.exclusive-binding; 000:741-754 003:385-388 004:12682-12700
    conformance/test_exchange_options.py::TestExclusiveBinding::test_every_message_goes_to_exactly_one_queue
+ selectors of bindings; 004:11757-11760 004:23472-23481
    broker/protocols/test_selectors_everywhere.py::test_a_binding_counts_for_messages_that_its_selector_matches
+ a message goes to many queues and is kept once; 002:1629 002:1887-1907
    broker/test_broker_model.py::test_a_message_goes_to_all_its_queues_and_is_the_same_on_all
+ durable depends on transient: refused on request; 002:1821-1827
    broker/protocols/test_queue_watches.py::test_with_strict_durability_what_is_durable_cannot_depend_on_what_is_not
+ dry run of a publish; 002:394-401
    tools/web/test_dry_run.py::test_the_method_says_who_would_get_a_message
/ lossy exchange, drops at random; 002:1703
    = a test device; the simulations of tests/faults lose messages
/ chained proxies, queue namespaces, access tickets; 002:1710 002:1861-1867 002:2228-2240
    = of AMQP/Fast; 0-9-1 has bindings between exchanges

== Queues
+ durable, exclusive, auto-delete; 003:255 003:395-409 004:24638-24646
    conformance/test_queue_lifetime.py::test_a_shared_one_goes_with_its_last_consumer_and_not_before_there_was_one
    conformance/test_queue_ownership.py::test_other_sessions_may_not_use_it
+ delete: if-empty, if-unused, owner; 003:400-404
    broker/test_topology.py::TestDeleteQueue::test_refused
+ orphaned and rejected messages go to the alternate exchange; 003:411-412
    conformance/test_queue_lifetime.py::test_remaining_and_acquired_messages_go_to_the_alternate_exchange
+ declaring again does not change durability; 004:24926-24928
    broker/test_topology.py::TestDeclareQueue::test_again
+ no-local; 003:449-451 004:10024
    conformance/test_queue_no_local.py::test_messages_of_the_owners_connection_are_dropped
+ qpid.max_count, qpid.max_size, default-queue-limit; 000:613-646 000:2507 003:414 004:12716-12749
    broker/test_queue_composition.py::test_max_count_limits_the_depth
+ reject; 000:617 003:416
    conformance/test_queue_publishing.py::test_publisher_to_a_full_queue_gets_an_error
+ flow_to_disk, paged queues; 000:620 003:418-419 004:971-979 004:3831-4166
    broker/test_paged_queues.py::test_a_backlog_is_on_the_disk_and_comes_back
+ flow_to_disk as the default of durable queues; 003:418
    system/test_queue_watches.py::test_durable_queues_flow_to_disk_by_default_if_the_option_says_so
+ ring, ring_strict; 000:621-623 003:420-423
    broker/test_displacement.py::test_the_oldest_messages_make_room
    broker/test_displacement.py::test_strict_ring_keeps_a_message_held_by_a_consumer
+ self-destruct; 000:1338
    system/test_queue_kinds.py::test_a_queue_that_destroys_itself
+ acquired messages count until they are accepted; 004:11875
    broker/test_queue.py::test_content_has_its_limit
+ flow stop and resume, by count and size; 000:2440-2476 003:529-580
    broker/test_flow_control.py::test_the_example_of_900_and_500
    broker/test_flow_control.py::test_flow_resumes_only_below_both_thresholds
+ default flow thresholds, none for rings; 000:2490-2511 003:540-548
    conformance/test_flow_control.py::test_the_example_of_10000_bytes
+ flow control delays completion; 000:2478-2484 004:778
    conformance/test_flow_control.py::test_the_example_of_two_senders
+ x-qpid-capacity, x-qpid-flow-resume-capacity; 004:3549-3553 004:23513 004:34185-34224
    broker/protocols/test_arguments.py::test_an_argument_has_its_effect
+ alerts: count, size, ratio, gap, and their other names; 003:426-448
    broker/test_alerts.py::test_thresholds
    broker/test_queue_arguments.py::test_other_names_of_alerts
+ alerts on the size of one message and the age of the oldest; 004:22897 004:31783-31786
    broker/protocols/test_queue_watches.py::test_a_large_message_raises_an_alert
    broker/protocols/test_queue_watches.py::test_an_old_message_raises_an_alert
+ slow consumers: disconnect with 506, delete, cycle; 004:9553-9674
    system/test_queue_watches.py::test_a_slow_consumer_is_disconnected_with_506
+ templates: limits by a name pattern, a maximum of consumers; 002:1869-1885
    broker/protocols/test_queue_watches.py::test_a_queue_has_a_maximum_of_consumers_by_itself_or_by_a_policy
    broker/test_policies.py::TestRunning::test_a_queue_that_comes_later_has_it_too
+ last value queues by a header of choice; 000:2213-2263 004:34022-34125
    broker/test_displacement.py::test_the_book_s_example
+ old last value queues keep the place; 000:654-676 003:454-463 004:12751-12780 004:13803-13913
    broker/protocols/test_queue_watches.py::test_lvq_keeps_the_place_of_what_is_replaced_as_the_guide_shows_it
    broker/protocols/test_queue_watches.py::test_lvq_no_browse_replaces_browsed_messages_in_place
+ released values are combined with newer ones; 000:669-675 004:12778
    broker/test_displacement.py::test_acquired_value_is_replaced_on_release
+ priorities; 003:464-469 004:9065-9151 004:34127-34181 002:1970-1977
    broker/test_priority.py::test_higher_levels_are_first_and_browsers_see_the_order_of_arrival
+ rings by priority; 003:468
    broker/test_priority.py::test_a_ring_discards_the_oldest_of_the_lowest_level
+ message groups, shared; 000:2675-2767
    system/test_queue_kinds.py::test_a_group_is_with_one_consumer_at_a_time
    system/test_queue_kinds.py::test_the_default_group
+ time to live, expiry; 004:10413 004:24994-25007
    conformance/test_queue_lifetime.py::test_messages_that_expire_go_nowhere
    broker/test_queue.py::test_message_passed_over_can_be_purged_and_expires
+ purge, of some messages or all, dequeues from the store; 004:11336 004:11988
    broker/test_management.py::test_messages_are_moved_rerouted_and_purged
    broker/protocols/test_promises.py::test_a_purge_is_completed_when_it_is_on_the_disk
+ replayable queues, from a point in the past; 004:23870-23942
    system/test_streams.py::test_messages_of_a_stream_are_read_again_and_again_with_their_offsets
/ qpid.persist_last_node; 003:473-476 004:12786-12804
    = of brokers in a cluster; the argument is reported as without effect
+ qpid.trace.id, qpid.trace.excludes; 004:10390 004:23485-23514
    broker/protocols/test_traces.py::test_the_queue_drops_messages_that_have_passed_excluded_brokers
+ unknown arguments are kept, those without effect reported; 000:682-684 004:23485-23524
    broker/test_argument_table.py::test_the_table_has_each_key_once_and_every_row_is_tried_here

== Sessions and delivery
+ sessions: attach, detach, several on a connection; 003:584-588
    broker/protocols/test_attachment.py::test_several_sessions_of_one_connection
+ completion, sync, flush; 003:585 004:11193-11387
    broker/protocols/test_promises.py::test_sync_waits_for_the_disk
    broker/protocols/test_session.py::test_flush_is_answered_with_the_requested_ranges
+ resumption of sessions; 004:10386 004:11062
    conformance/test_session_resumption.py::test_unconfirmed_commands_are_sent_again_under_the_same_number
+ message.resume; 004:1714-1749 002:2674-2684
    conformance/test_message_resume.py::test_the_rest_follows
+ accept, release, reject, acquire; 003:589-595 004:10156
    broker/protocols/test_deliveries.py::test_released_messages_come_again_in_their_old_order
+ accept and acquire modes; 003:594-595 004:10523
    broker/protocols/test_deliveries.py::test_without_accepting_a_message_is_gone_when_it_is_sent
+ browsing; 003:394 003:469
    broker/protocols/test_deliveries.py::test_browsing_leaves_all_where_it_is
+ credit and windows, of messages and bytes; 003:596-601 004:9332-9343 004:11728
    broker/protocols/test_credit.py::test_credit_of_bytes_is_used_up
    broker/protocols/test_credit.py::test_the_window_of_bytes_moves_too
+ order is kept over release, rollback and redelivery; 004:8947-8953 004:9503-9547 004:23174-23250
    broker/test_queue.py::test_released_message_returns_to_its_place
    broker/protocols/test_turns.py::test_nothing_overtakes_messages_that_return_in_turns
+ channel.flow is answered when nothing more is delivered; 004:9501-9551
    broker/protocols/test_basic_channel.py::test_a_channel_that_does_not_flow_gets_nothing
+ immediate messages; 004:8961-8977 004:30215
    conformance/test_queue_publishing.py::test_an_immediate_message_needs_a_consumer_on_each_queue
+ selectors of consumers; 004:659 004:895-897 004:23516
    broker/protocols/test_selectors_everywhere.py::test_consumers_of_0_9_1_have_selectors
    conformance/test_selectors.py::test_each_consumer_receives_the_messages_it_selects
+ x-filter-no-consume, x-filter-auto-close; 004:9369-9390 004:23516-23524
    broker/protocols/test_selectors_everywhere.py::test_a_consumer_that_does_not_consume_leaves_messages
    broker/protocols/test_selectors_everywhere.py::test_a_consumer_closes_when_there_is_nothing_for_it
+ heartbeats, both ways; 003:398 004:1987-2003 004:24802-24816
    broker/protocols/test_connection.py::test_a_client_that_is_not_heard_is_closed
+ large messages, of many frames; 004:11371 002:1212
    conformance/test_large_messages.py::test_content_of_any_size
+ a user id that is not the sender's is refused; 004:4453-4486
    broker/protocols/test_session_errors.py::test_a_message_in_anothers_name
+ queue.query of an unknown queue; 004:11184
    conformance/test_queue_query.py::test_a_missing_queue_is_not_an_error
+ memory is bounded, publishers are held; 002:449 004:22085-22103 004:3461-3495
    broker/test_server_memory.py::test_publishers_are_stopped_and_go_on_when_there_is_memory_again
+ bad input harms nobody; 004:10023 004:11909 002:2733-2739
    broker/protocols/test_fuzz.py::test_noise_after_any_part_of_a_conversation

== Transactions
+ local transactions; 003:605-608 004:788 002:2009-2014
    conformance/test_transactions.py::test_others_see_all_of_it_at_the_commit_and_nothing_before
    conformance/test_transactions.py::test_rollback_discards_sent_messages_and_keeps_acquired_ones
+ a session that ends rolls back; 003:608
    conformance/test_transactions.py::test_a_session_that_ends_before_its_commit_has_done_nothing
+ distributed transactions: start, end, prepare, commit, rollback; 003:609 004:792 004:1771-1775 004:23727-23755
    conformance/test_distributed_transactions.py::test_every_way_to_end_a_branch
+ join, suspend, resume; 004:22665-22667
    conformance/test_distributed_transactions.py::test_suspended_and_resumed
    conformance/test_distributed_transactions.py::test_several_sessions_work_for_one_branch
+ dtx.recover, dtx.forget, error codes; 004:10519 004:11182-11186
    conformance/test_distributed_transactions.py::test_many_branches_in_doubt_come_in_one_result
    conformance/test_distributed_transactions.py::test_commands_in_the_wrong_state
+ timeouts of branches; 004:33648-33687
    conformance/test_distributed_transactions.py::test_timeouts
+ prepared branches survive, and keep places on queues; 004:2392-2413 004:22677
    broker/test_branch.py::test_a_prepared_branch_that_is_rolled_back_gives_messages_back_in_their_places
+ transactions of management: in doubt, ended by an operator; 004:29462 004:23142-23145
    broker/test_management_methods.py::test_an_operator_ends_transactions_in_doubt
    broker/test_statistics.py::TestSession::test_transactions

== The store
+ durable exchanges, queues, bindings and their arguments; 004:955-965 004:11759 004:12012 003:613
    broker/test_topology_storage.py::TestReopened::test_everything_is_there_again
+ persistent messages on durable queues only; 003:618-633 004:940 004:10789
    broker/test_topology_storage.py::TestReopened::test_only_durable_objects_are_stored
+ acknowledged after the disk has it; 003:628 003:661 004:1693-1733 004:22203
    broker/protocols/test_promises.py::test_a_transfer_is_completed_when_it_is_on_the_disk
    system/test_broker_killed.py::test_killed_again_and_again
+ num-jfiles, jfile-size-pgs, wcache-page-size and those of the prepared list; 000:388-390 003:675-680 004:24946-24978
    store/test_parameters.py::test_defaults
+ illegal numbers are corrected with a warning; 003:684-688
    store/test_parameters.py::test_correction
+ store-dir, store-directory, and an error without any; 000:376 003:646 003:674 004:24944
    store/test_parameters.py::test_store_directory
+ store-async, store-force; 000:379-387 004:27984-27988
    store/test_parameters.py::test_options_without_use_are_accepted_with_a_notice
+ truncate; 003:681 003:909
    store/test_identity.py::test_truncate_discards_even_a_clean_store
+ qpid.file_count, qpid.file_size; 003:506-509 003:662-670 004:23500
    broker/test_topology_storage.py::TestGeometry::test_by_the_arguments
+ a full journal refuses enqueues, and dequeues go on; 003:658-660 004:24956-24970
    store/test_threshold.py::test_version_2_takes_messages_up_to_the_limit
    system/test_broker_threshold.py::test_continues_while_it_is_drained
+ RHM_IORES_ENQCAPTHRESH in the error of a full journal; 003:658 004:24956-24958
    tools/test_messaging_outcome.py::test_full_journal_error_names_remedies_and_confirmed_count
+ sizes: records, blocks, both examples; 003:709-765
    tools/test_size.py::test_the_first_example
    tools/test_size.py::test_the_second_example
+ the prepared list; 003:661 004:24972-24978
    faults/test_store_crashes.py::test_promises_hold_under_every_crash
+ damage is told from a torn end; 004:28277-28289
    store/test_damage.py::test_every_damage_can_be_reported
+ memory does not grow with the backlog; 004:23550 004:23763
    broker/test_residency_store.py::test_a_start_reads_only_the_index
+ orphans are found, and a policy says what becomes of them; 004:4233
    tools/test_recover_loose.py::test_an_orphan_kept_aside
+ a queue takes its stored bindings along; 004:35635
    store/test_catalogue.py::TestBatches::test_a_queue_takes_its_bindings_along
+ clean and dirty stores, cluster and shutdown ids; 003:901-943 004:2272-2362
    store/test_identity.py::test_every_mixture_of_three_against_the_rules_in_other_words
    store/test_identity.py::test_manual_recovery_as_the_documents_tell_it
+ stores of qpidd are taken over; 004:949-953
    system/test_broker_qpidd_stores.py::test_the_messages_are_those_that_qpidd_recovered
+ stores of the Java broker (BDB-JE, Derby): found, and refused in a line that says what to do; 004:27025-27061
    tools/test_store_shell.py::test_another_store
    tools/test_java_broker.py::test_a_store_of_the_java_broker_is_not_read_and_says_what_to_do
/ stores of the Java broker, read: BDB-JE, Derby, JDBC; 004:938-947 004:3162-3186
    = no document describes the bytes of their files; queues are drained with a shovel, the configuration is imported
+ wrong order of calls, errors, aborts: a reason and no loss; 002:2775-2781 002:439-449
    faults/test_broker_crashes.py::test_promises_hold_whenever_the_broker_dies

== Tools for stores
+ resize: larger or smaller, old store kept; 003:769-770
    tools/test_resize_drop_in.py::test_every_journal_of_every_store
+ store_chk; 003:770
    tools/test_store_chk.py::test_default_output
+ qpid-cluster-store -c; 003:927-939
    tools/test_cluster_store.py::test_the_whole_way_back_after_a_failure_of_all
+ MessageStoreTool: list, select, show, dump, clear, copy, move; 004:28904-28974
    tools/test_store_shell.py::test_selections
    tools/test_store_shell.py::test_copies_and_moves_keep_everything
+ wrong file, wrong kind, running broker: refused in a line; 004:28972
    tools/test_store_shell.py::test_a_store_in_use_is_refused

== Federation and replication
+ links: durable, states, back-off of 2 to 64 s; 000:1025-1047 003:1159-1175 004:18363-18405
    broker/federation/test_link.py::test_the_back_off_doubles_from_2_to_64_seconds
    broker/federation/test_stored_links.py::test_durable_ones_are_recovered_as_they_were
+ pull and push routes; 000:781 003:961 004:18536-18544
    broker/federation/test_bridges.py::test_a_pull_route_brings_what_its_key_matches
    broker/federation/test_bridges.py::test_a_push_route_sends_what_its_key_matches
+ queue routes, acknowledgements in batches; 000:785-787 003:964-968 004:18518-18534 004:18594
    broker/federation/test_bridges.py::test_acknowledgements_are_batched_but_never_wait_for_more_messages
+ dynamic routes; 000:795-803 003:975-980 004:18407-18445
    broker/federation/test_bridges.py::test_bindings_are_announced_and_taken_back
+ messages accumulate while a durable route is down; 000:941 003:1079
    system/test_federation.py::test_messages_of_a_durable_route_wait_while_the_brokers_cannot_reach_each_other
+ loops are prevented; 004:2081 004:18592
    system/test_federation_ring.py::test_nothing_is_lost_and_nothing_loops_while_brokers_of_a_ring_are_killed
+ qpid-route: verbs, options, list, map, flush; 000:823-1023 003:993-1167 004:18546-18583 004:27403-27505
    system/test_federation.py::test_links_and_routes_are_shown_as_in_the_manual
+ link-maintenance-interval, link-heartbeat-interval, federation-tag; 000:1056-1058 000:2849-2853
    broker/test_options.py::test_defaults_are_the_documents
+ known-hosts-url, amq.failover; 000:2843 003:813-818
    system/test_failover.py::test_addresses_are_sent_when_a_queue_is_bound_and_when_they_change
+ queue replication: listener, exchange, events; 000:2310-2434 003:1179-1239 004:12982-13114
    system/test_broker_replication.py::test_a_queue_follows_that_of_another_broker
    broker/test_replication.py::test_events_that_come_again_are_ignored
> active-passive HA: states, promotion, ha- options; 000:2774-3316
    = not built; joining a cluster is refused, options of HA alone are ignored with a log line
> active-active cluster: membership, updates, qpid-cluster; 003:774-900 004:834-844 004:1563-2045
    = not built; joining a cluster is refused
> qpid-ha, qpid-cluster; 000:3722-3736 003:833-861 004:1016-1019
    = not built; they belong to HA and the cluster
/ corosync, openais, cman, rgmanager; 000:2819-3007 003:781-807 004:18118-18251
    = cluster managers outside the broker
/ resource-wide multicast, shadow connections, Cluster.* class; 004:1801-1870 004:2132-2269
    = the design of qpidd's old cluster

== Management: QMF
+ version 1: header AM2, opcodes, requests and answers; 004:19553-19608 004:19654-20029
    broker/test_qmf1.py::test_objects_of_a_class_and_by_id
    broker/test_qmf1.py::test_any_bytes_are_answered_or_ignored
+ version 1: schemas, types, codes; 004:19748-19881
    broker/test_qmf1.py::test_every_schema_can_be_reported
+ version 1: object ids, boot sequence kept; 004:19610-19626
    broker/test_management_methods.py::test_a_broker_is_known_again
+ version 1: objects when they change, everything to a new console; 004:19628-19644 000:4321-4344
    broker/test_qmf1.py::test_everything_is_published_soon_after_a_console_has_bound_itself
+ version 1: heartbeats and events; 004:19882-19958
    broker/test_qmf1.py::test_heartbeats_and_events
+ version 1: attached agents; 004:20044-20121
    broker/test_qmf1.py::test_requests_for_an_agent_are_routed_and_a_new_console_is_notified
+ AM1, the protocol of M3: requests and answers; 001:371-901 004:28321-28773
    broker/test_qmf_am1.py::test_schemas_have_the_codes_of_the_document
    broker/test_qmf_am1.py::test_methods
+ AM1: ids of 64 bits, banks; 001:249-274
    broker/test_qmf_am1.py::test_ids_have_the_banks_of_the_document
+ AM1: properties, statistics, schemas and heartbeats are published; 001:137-163 001:313-336 001:405-410
    broker/test_qmf_am1.py::test_properties_and_statistics_have_keys_of_their_own
    broker/test_qmf_am1.py::test_a_new_console_gets_all_schemas_and_heartbeats
+ AM1: the extended protocol; 001:814-901
    broker/test_qmf_am1.py::test_agents_attach_and_describe_their_classes
+ version 2: locate, query, method; 004:19258-19513
    broker/test_management.py::test_objects_of_a_class
    broker/test_qmf2.py::test_objects_that_fulfil_a_condition
+ version 2: indications of data, events, heartbeats; 004:19299-19316 003:428-436
    broker/test_qmf2.py::test_objects_are_published_when_they_change_and_end
+ version 2: subscriptions, refreshed and cancelled; 004:19303-19316 004:19515-19551
    broker/test_subscriptions.py::test_the_first_indication_has_all_and_later_ones_what_has_changed
    broker/test_subscriptions.py::test_a_subscription_ends_with_its_duration_unless_it_is_refreshed
    broker/console/test_console.py::test_a_subscription_has_the_objects_and_what_changes
+ agents of version 1 for consoles of version 2; 004:20616-20640
    broker/test_proxies.py::test_objects
    broker/test_proxies.py::test_methods
    broker/test_proxies.py::test_events_and_objects_reach_consoles_of_both_versions
    broker/test_qmf_am1.py::test_agents_answer_consoles_of_version_2
    broker/test_qmf_am1.py::test_what_agents_publish_reaches_consoles_of_both_forms
    system/test_broker_management.py::test_events_of_an_agent_of_version_1_reach_consoles_of_version_2
+ a library for agents: classes, objects, events, methods; 004:21760-21880 004:21921-21975
    broker/console/test_agent_library.py::test_objects_and_classes
    broker/console/test_agent_library.py::test_methods
    broker/console/test_agent_library.py::test_events
+ a library for agents: subscriptions; 004:21981-22083
    broker/console/test_agent_library.py::test_subscriptions
+ a library for agents: objects outside of it, work queues (AgentExternal, WorkItem); 004:21380-21420 004:21822-21975
    broker/console/test_agent_library.py::test_queries_and_calls_are_answered_by_the_program
    broker/console/test_agent_library.py::test_the_program_indicates_to_subscriptions
    broker/console/test_agent_library.py::test_a_program_that_takes_nothing_has_more_refused
+ version 2: conditions of queries (and, or, not, quote, unquote, re_match, exists, ...); 004:21040-21360
    formats/test_qmf_predicate.py::test_a_condition_holds_or_not
+ qmf.console: sessions, objects, methods; 000:3935-4198 004:20122-20402
    broker/console/test_qmf_console.py::test_properties_and_statistics
    broker/console/test_qmf_console.py::test_methods
+ qmf.console: callbacks, bindings, asynchronous calls; 000:4199-4368 004:20403-20589
    broker/console/test_qmf_console.py::test_events_of_a_broker_whose_connection_is_managed
    broker/console/test_qmf_console.py::test_objects_of_bound_classes
    broker/console/test_qmf_console.py::test_a_call_that_is_not_waited_for
+ the classes of qpidd's broker; 000:3521-3713 004:22754-23160
    broker/test_management_schema.py::test_a_class_is_that_of_the_schema
+ the queue's class of M3: storeRef, enqueueTxn*, dequeueTxn*, msgDepthHigh and Low; 003:1730-1781 004:27578-27638
    system/test_broker_management.py::test_a_queue_has_the_statistics_of_m3
    broker/test_statistics.py::TestQueue::test_high_and_low_water_marks
    broker/test_statistics.py::TestQueue::test_transactions_that_enqueue_and_dequeue_are_counted
+ echo, connect, queueMoveMessages, purge and qpidd's other methods; 000:408-427 000:4168-4184 004:20338-20394
    broker/test_management_every_method.py::test_every_method_works_or_says_why_not
+ events of qpidd; 004:33449-33464 000:4262
    broker/test_management_schema.py::test_events_are_those_of_the_schema
+ methods and queries are authorized; 004:18858-18863 000:1737-1744
    broker/test_management.py::test_methods_are_authorized_as_their_caller
+ many consoles cost little; 001:94-104
    system/test_management_hostile.py::test_a_thousand_consoles
/ JMX, MBeans, Eclipse console, QMan, WS-DM; 004:14136-17963 004:19178-19256 004:36760-37291
    = Java; qstore-console has the functions
+ functions of the management consoles: view, move, copy, delete messages; 004:29383-29522
    tools/web/test_server.py::test_messages_keep_their_properties
    tools/test_store_shell_broker.py::test_selections_and_changes

== Tools for brokers
+ qpid-config: exchanges, queues, add, del, bind, unbind, summary; 000:3330-3381 003:1614-1682 004:27288-27401
    tools/test_qpid_config.py::test_the_summary_counts
    tools/test_qpid_config.py::test_options_of_a_new_queue_are_shown_as_they_were_given
+ qpid-config: -b with queues and exchanges, --policy-type, --last-value-queue; 000:3348 003:514 003:1657 004:27302
    tools/test_qpid_config.py::test_b_without_a_url_shows_bindings
    tools/test_qpid_config.py::test_options_of_a_new_queue_are_shown_as_they_were_given
+ qpid-config: --file-count, --file-size, --limit-policy, --order, groups, flow control; 000:3354-3373 003:499-569
    tools/test_qpid_config.py::test_the_table_of_options_has_each_once
+ qpid-tool: list, schema, call, set; 000:3490-3714 003:1686-1785 004:27507-27747
    tools/test_qpid_tool.py::test_lists
+ qpid-tool: deleted objects with their times; 003:405 004:27507-27747
    tools/test_qpid_tool.py::test_deleted_objects_are_kept_with_their_time
+ qpid-stat; 003:1604 004:1028-1033
    tools/test_qpid_stat.py::test_queues
+ qpid-queue-stats; 003:1790-1811
    tools/test_qpid_stat.py::test_rates_of_queues
+ qpid-printevents; 000:3716-3720 003:1606 004:27750-27765
    tools/test_qpid_printevents.py::test_events_are_lines
+ qpid-events and qpid-stats to syslog; 004:24717-24723
    tools/test_qpid_printevents.py::test_events_go_to_the_systems_log
    tools/test_qpid_stat.py::test_rates_go_to_the_systems_log
+ qpid-ctrl; 000:546-564
    tools/test_qpid_ctrl.py::test_log_levels_as_the_manual_shows_them
    tools/test_qpid_ctrl.py::test_a_method_of_any_object
+ qpid-perftest; 003:1574-1583 004:24656-24664 004:32611-32710
    tools/test_qpid_perftest.py::test_the_report
    tools/test_qpid_perftest.py::test_several_processes
+ qpid-latency-test; 003:1574-1583 004:24666-24682
    tools/test_qpid_latency_test.py::test_a_count_of_messages
    tools/test_qpid_latency_test.py::test_a_rate_with_reports
+ qpid-txtest, --dtx; 004:12212-12218 004:33097-33112
    tools/test_test_programs.py::test_all_messages_are_there_after_transactions
    tools/test_test_programs.py::test_branches_in_doubt_are_decided_in_turns
+ lvqtest; 004:13915-14131
    tools/test_test_programs.py::test_last_value_queues_as_the_manual_shows_them
+ qpid-topic-listener, qpid-topic-publisher; 004:33097-33112
    tools/test_test_programs.py::test_topics
+ spout, drain; 003:831
    tools/test_spout_drain.py::test_a_message

== Clients
+ addresses: create, assert, delete, node, link, browse; 000:2254-2299 003:383 003:429-436
    broker/client/test_address.py::test_reads
    broker/client/test_messaging.py::test_queue_with_options
+ reconnect, replay, heartbeat; 000:3041-3109 003:865-890
    broker/client/test_failures.py::test_messages_survive_a_kill
+ URLs: transports, lists of brokers, virtual hosts, options; 000:2855-2863 003:813-818 004:35077-35218
    broker/client/test_address.py::test_url_is_read
    broker/client/test_address.py::test_options_of_urls_are_read
+ Java connection and binding URLs; 004:34860-35075
    broker/client/test_address.py::test_urls_of_the_java_client_are_read
    broker/client/test_messaging.py::test_binding_urls
+ QPID_SSL_* of clients, as PEM files, protocol: ssl; 000:2184-2204 003:1545-1557
    broker/security/test_tls.py::test_the_environment_of_the_c_plus_plus_client
    broker/client/test_address.py::test_options_take_precedence_over_those_of_a_url
+ browsing, one message, prefetch; 004:18253-18333
    broker/client/test_messaging.py::test_browsing
    broker/client/test_messaging.py::test_next_receiver
+ capacity settable later, receivers by name, unsettled, acknowledge up to a message; 004:983-985
    broker/client/test_messaging.py::test_the_capacity_of_a_receiver_can_be_changed
    broker/client/test_messaging.py::test_links_are_found_by_their_names
    broker/client/test_messaging.py::test_acknowledgements_that_the_broker_has_not_confirmed
    broker/client/test_messaging.py::test_acknowledging_up_to_a_message
+ send warns after 5 s and fails after 120 s of flow control; 004:34228-34253
    broker/client/test_messaging.py::test_a_queue_that_controls_the_flow_delays_and_fails_sending
+ error classes; 004:22679-22710
    broker/client/test_machine.py::test_failures_have_distinct_error_types
+ clients of the time: 0-8, 0-9, 0-10; 004:691-697 004:1058-1068 004:23765-23840
    system/test_amqp_0_8.py::test_committed_messages_survive_a_kill
/ JMS, JNDI, .NET, WCF, Ruby clients and their properties; 004:25497-26629 004:32050-32157 004:34687-34845
    = programs of other languages

== Protocols
+ 0-10; 000:2545-2594 003:236-248 004:644
    broker/protocols/test_command_fields.py::test_every_field_is_read_or_listed_with_the_reason
+ 0-8 and 0-9; 004:641-642 004:772-773 004:1080-1108
    broker/protocols/test_basic_older.py::test_every_method_is_answered_or_refused
+ 0-9-1; 004:643 004:774
    broker/protocols/test_basic_channel.py::test_a_message_is_published_and_consumed
+ 1.0; 000:1370-1401 004:645
    system/test_amqp_1_0_clients.py::test_proton_sends_and_receives
+ one port for all, by the header; 004:641-645 004:1058-1068
    broker/test_protocol_detection.py::test_each_protocol_has_a_header_of_its_own
+ error codes; 004:27136-27154 002:2586-2635
    broker/protocols/test_session_errors.py::test_every_error_of_the_model_has_a_number
+ virtual hosts; 002:967-971 004:11689 004:2989
    broker/protocols/test_virtual_hosts.py::test_equal_names_are_different_queues_for_both_protocols
/ AMQP/Fast: frames, traces, dry runs of methods, jms, file and stream classes; 002:840-2760
    = a draft of 2005 without figures; no client is left

== The Java broker's configuration
+ config.xml, virtualhosts.xml as an import; 004:31313-31816 004:33924-33971
    tools/test_java_broker.py::test_virtual_hosts_with_queues_exchanges_limits_and_alerts
    tools/test_java_broker.py::test_settings_of_the_broker
    tools/test_java_broker.py::test_files_in_several_parts_and_rules_that_cannot_be_read
+ its store tool, status messages and alerts; 004:28904-28974 004:31165-31257 004:36796
    tools/test_store_shell.py::test_lists
    system/test_broker_status_log.py::test_every_message_is_written
/ qpid-cli, JMX ports, QPID_JAVA_MEM; 004:35220-35282 004:30074-30094 004:28291-28307
    = Java

== Tests and measures
+ interoperability programs IOP-1 to 60; 004:36058-36531
    interop/test_interop.py::test_every_client_with_every_other_one
+ soak kit: matrix of latency, reliability and throughput cases; 004:36609-36758 004:11594 004:34631-34685
    interop/test_interop.py::test_every_case_of_the_soak_kit_gets_all_of_its_messages
    interop/test_interop.py::test_a_lost_message_fails_a_case_of_the_soak_kit
    interop/test_interop.py::test_soak
+ crash points: before and after commit and send; 004:36667-36671
    system/test_broker_transactions_killed.py::test_every_message_is_there_once_whatever_dies
+ message sizes around frames and pages; 004:36386 004:36403
    conformance/test_large_messages.py::test_content_of_any_size
"""


NAMES: Final = """
== Arguments of queues
+ qpid.policy_type; 003:415 004:23497 004:25371
    broker/test_displacement.py::test_the_oldest_messages_make_room
+ qpid.max_count; 003:414 004:23499 004:25369
    broker/test_queue_composition.py::test_max_count_limits_the_depth
+ qpid.max_size; 003:414 004:23498 004:25338
    broker/test_displacement.py::test_a_ring_by_bytes
+ qpid.flow_stop_count; 000:2526 003:556
    broker/test_flow_control.py::test_the_example_of_900_and_500
+ qpid.flow_stop_size; 000:2522 003:552
    broker/test_flow_control.py::test_flow_resumes_only_below_both_thresholds
+ qpid.flow_resume_count; 000:2527 003:558
    broker/test_flow_control.py::test_the_example_of_900_and_500
+ qpid.flow_resume_size; 000:2525 003:554
    broker/test_flow_control.py::test_flow_resumes_only_below_both_thresholds
+ x-qpid-capacity; 004:23513
    broker/protocols/test_arguments.py::test_an_argument_has_its_effect
+ x-qpid-flow-resume-capacity; 004:23514
    broker/protocols/test_arguments.py::test_an_argument_has_its_effect
+ qpid.alert_count; 003:427 003:446
    broker/protocols/test_streams.py::test_alerts_are_raised_when_a_stream_fills_up_and_when_retention_has_emptied_it
+ qpid.alert_size; 003:427 003:447
    broker/protocols/test_streams.py::test_alerts_are_raised_when_a_stream_fills_up_and_when_retention_has_emptied_it
+ qpid.alert_repeat_gap; 003:437 003:448
    broker/protocols/test_queue_watches.py::test_a_large_message_raises_an_alert
+ x-qpid-maximum-message-count; 003:446 004:23511
    broker/test_queue_arguments.py::test_other_names_of_alerts
+ x-qpid-maximum-message-size; 003:447 004:23510
    broker/test_queue_arguments.py::test_other_names_of_alerts
+ x-qpid-minimum-alert-repeat-gap; 003:448 004:23512
    broker/test_queue_arguments.py::test_other_names_of_alerts
+ x-qpid-maximum-message-age; 004:23509
    broker/protocols/test_queue_watches.py::test_an_old_message_raises_an_alert
+ no-local; 003:451 004:23491
    broker/test_queue_composition.py::test_messages_published_by_the_owner_are_dropped
+ qpid.last_value_queue; 000:2308 003:463 004:23502
    broker/protocols/test_queue_watches.py::test_lvq_keeps_the_place_of_what_is_replaced_as_the_guide_shows_it
+ qpid.last_value_queue_no_browse; 000:2308 003:463 004:23503
    broker/protocols/test_queue_watches.py::test_lvq_no_browse_replaces_browsed_messages_in_place
+ qpid.last_value_queue_key; 000:2254 004:34059
    broker/test_displacement.py::test_the_book_s_example
+ qpid.priorities; 003:465 003:466
    broker/protocols/test_arguments.py::test_an_argument_has_its_effect
+ x-qpid-priorities; 004:23508
    system/test_queue_kinds.py::test_a_ring_by_priority_has_the_most_urgent_after_a_kill
+ qpid.group_header_key; 000:2741
    system/test_queue_kinds.py::test_a_group_is_with_one_consumer_at_a_time
+ qpid.shared_msg_group; 000:2742
    system/test_queue_kinds.py::test_a_group_is_with_one_consumer_at_a_time
+ qpid.msg_sequence; 004:23504
    broker/test_displacement.py::test_numbers_on_the_queue_have_gaps_where_messages_were_discarded
+ qpid.queue_event_generation; 000:2375 003:1200 004:13046
    system/test_broker_replication.py::test_a_queue_follows_that_of_another_broker
+ qpid.trace.id; 004:23506
    broker/protocols/test_traces.py::test_the_queue_adds_its_name_once
+ qpid.trace.excludes; 004:23507
    broker/protocols/test_arguments.py::test_an_argument_has_its_effect
+ qpid.file_count; 003:663 004:23500
    broker/test_topology_storage.py::TestGeometry::test_by_the_arguments
+ qpid.file_size; 003:663 004:23501
    broker/test_topology_storage.py::TestGeometry::test_by_the_arguments
~ qpid.persist_last_node; 004:25375 004:25480
    broker/protocols/test_arguments.py::test_argument_without_effect_is_logged
    = ignored, with a line in the log
~ qpid.replicate; 000:3025 000:3035
    broker/protocols/test_arguments.py::test_unimplemented_argument_is_refused_by_name
    = refused by its name
~ alternate-exchange; 003:412
    broker/protocols/test_arguments.py::test_unimplemented_argument_is_refused_by_name
    = refused by its name: it is a field of the declaration
== Arguments of exchanges
+ qpid.msg_sequence; 000:705 003:378 004:23470
    conformance/test_exchange_options.py::TestSequence::test_messages_are_numbered_from_0_in_an_int64
+ qpid.ive; 000:733 003:380 004:23469
    conformance/test_exchange_options.py::TestInitialValue::test_late_binding_gets_the_last_message
~ qpid.replicate; 000:3025
    broker/protocols/test_arguments.py::test_unimplemented_argument_is_refused_by_name
    = refused by its name
== Arguments of bindings
+ qpid.exclusive-binding; 000:743 003:388 004:12684
    conformance/test_exchange_options.py::TestExclusiveBinding::test_every_message_goes_to_exactly_one_queue
+ x-match; 004:25355 004:29448
    broker/test_exchanges_headers.py::TestAllAndAny::test_all
+ xquery; 004:912
    broker/protocols/test_exchange_types.py::test_xml_binding
+ x-filter-jms-selector; 004:23481
    broker/protocols/test_selectors_everywhere.py::test_a_binding_counts_for_messages_that_its_selector_matches
+ qpid.fed.origin; 004:23480
    broker/protocols/test_arguments.py::test_an_argument_has_its_effect
== Arguments of subscriptions
+ x-filter-jms-selector; 004:23522
    broker/protocols/test_selectors_everywhere.py::test_consumers_of_0_9_1_have_selectors
+ x-filter-no-consume; 004:23523
    broker/protocols/test_selectors_everywhere.py::test_a_consumer_that_does_not_consume_leaves_messages
+ x-filter-auto-close; 004:23524
    broker/protocols/test_selectors_everywhere.py::test_a_consumer_closes_when_there_is_nothing_for_it
== Options of the broker
+ help; 000:175 000:177
    system/test_qpidd_start.py::test_help_shows_a_module_s_options_when_it_is_loaded
+ version; 000:251 004:27910
    system/test_qpidd_start.py::test_version
+ config; 000:253 000:373
    system/test_qpidd_start_options.py::test_a_broker_that_a_file_describes
+ module-dir; 000:255 004:11265
    system/test_qpidd_start_options.py::test_the_store_of_a_directory_of_modules
+ load-module; 000:257 000:366
    system/test_qpidd_start.py::test_help_shows_a_module_s_options_when_it_is_loaded
+ no-module-dir; 000:259 004:26691
    broker/test_options_sources.py::test_which_directory_of_modules
+ data-dir; 000:189 000:262
    system/test_qpidd_start.py::test_a_killed_broker_s_directory_needs_no_tidying
+ no-data-dir; 000:183 000:264
    system/test_qpidd_start.py::test_no_data_directory
+ port; 000:268 004:27922
    system/test_qpidd_start.py::test_a_port_given_as_an_option_is_not_printed
+ max-connections; 000:271 000:2030
    broker/test_server_sockets.py::test_no_more_connections_than_allowed
+ connection-backlog; 000:273 004:27925
    broker/test_server_sockets.py::test_as_many_clients_as_may_connect_can_come_at_once
+ staging-threshold; 000:276 004:27927
    broker/test_paged_queues.py::test_large_messages_leave_memory_unless_they_are_consumed_at_once
+ mgmt-enable; 000:278 004:27928
    system/test_broker_management.py::test_management_is_switched_off
+ mgmt-pub-interval; 000:280 004:27929
    system/test_management_hostile.py::test_a_thousand_consoles
+ tcp-nodelay; 004:11365 004:11992
    broker/test_server_sockets.py::test_small_segments_go_out_at_once_or_not
+ transport; 000:3434 004:18576
    broker/test_options.py::test_invalid_option_is_refused_with_a_hint
+ watchdog-interval; 003:896 004:1975
    system/test_watchdog.py::test_a_broker_whose_event_loop_stands_still_is_killed
+ enable-timestamp; 000:398 000:400
    conformance/test_queue_publishing.py::test_each_message_has_the_time_at_which_it_came
+ max-session-rate; 004:24703
    broker/protocols/test_session_rates.py::test_a_session_is_held_to_its_rate
+ daemon; 000:167 000:169
    system/test_qpidd_start.py::test_a_daemon_is_ready_when_its_starter_returns
+ wait; 000:292 004:27936
    system/test_qpidd_start.py::test_a_daemon_that_is_not_ready_in_time_is_ended
+ check; 000:295 004:27939
    system/test_qpidd_start.py::test_a_daemon_is_ready_when_its_starter_returns
+ quit; 000:171 000:300
    system/test_qpidd_start.py::test_a_daemon_is_ready_when_its_starter_returns
+ pid-dir; 004:11297 004:11301
    broker/test_daemon.py::test_default_pid_directory_depends_on_the_user
+ trace; 000:302 004:27948
    broker/test_plan.py::test_trace_logs_everything_that_is_not_disabled
+ log-enable; 000:304 000:314
    broker/test_plan.py::test_trace_logs_everything_that_is_not_disabled
+ log-disable; 000:322 000:333
    broker/test_plan.py::test_trace_logs_everything_that_is_not_disabled
+ log-time; 000:343 004:27959
    broker/test_logs.py::test_line_shows_optional_parts
+ log-level; 000:344 004:27960
    broker/test_logs.py::test_line_shows_optional_parts
+ log-source; 000:345 004:27961
    broker/test_logs.py::test_line_shows_optional_parts
+ log-thread; 000:346 004:27962
    broker/test_logs.py::test_line_shows_optional_parts
+ log-function; 000:347 004:27963
    broker/test_logs.py::test_line_shows_optional_parts
+ log-hires-timestamp; 000:348
    broker/test_logs.py::test_line_shows_optional_parts
+ log-category; 000:349
    broker/test_logs.py::test_line_shows_optional_parts
+ log-prefix; 000:350
    broker/test_logs.py::test_line_shows_optional_parts
+ log-to-stderr; 000:352
    broker/test_plan.py::test_where_the_log_goes
+ log-to-stdout; 000:353
    broker/test_plan.py::test_where_the_log_goes
+ log-to-file; 000:354
    broker/test_plan.py::test_where_the_log_goes
+ log-to-syslog; 000:355
    broker/test_plan.py::test_where_the_log_goes
+ log-output; 004:11377 004:18200
    broker/test_plan.py::test_where_the_log_goes
+ syslog-name; 000:357 004:11278
    broker/test_logs.py::test_syslog
+ syslog-facility; 000:356 004:11278
    broker/test_logs.py::test_syslog
+ auth; 000:239 004:18200
    system/test_qpidd_start.py::test_no_auth
+ no-auth; 000:239 004:27898
    broker/test_options_sources.py::test_other_names_are_the_same_option
+ realm; 000:227 004:18904
    system/test_kerberos.py::test_a_ticket_lets_its_principal_in
+ auth-realm; 000:227 004:27884
    broker/test_options_sources.py::test_other_names_are_the_same_option
+ acl-file; 000:1194 003:1348
    system/test_broker_acl.py::test_rules_quotas_and_reloads
+ strict-acl-validation; 004:18776
    system/test_qpidd_start_options.py::test_rules_without_effect_end_the_start_if_the_validation_is_strict
+ connection-limit-per-user; 000:2030 000:2034
    broker/test_acl_control.py::test_limits_of_users
+ connection-limit-per-ip; 000:2030 000:2036
    system/test_broker_acl.py::test_rules_quotas_and_reloads
+ max-queues-per-user; 000:2123 000:2132
    broker/test_acl_control.py::test_the_option_limits_queues_of_users_without_a_quota
+ queue-limit-per-user; 000:2137
    broker/test_acl_control.py::test_the_option_limits_queues_of_users_without_a_quota
+ ssl-cert-password-file; 000:2151 003:1549
    broker/security/test_tls.py::test_a_key_with_a_password
+ ssl-port; 000:2169 003:1536
    conformance/test_tls.py::test_a_port_of_its_own
+ ssl-require-client-authentication; 000:2170 003:1538
    conformance/test_tls.py::test_each_client_must_have_a_certificate
+ ssl-sasl-no-dict; 000:2198 003:1542
    conformance/test_tls.py::test_passwords_over_tls
+ require-encryption; 000:2180 003:1544
    conformance/test_tls.py::test_only_encrypted_connections
+ default-queue-limit; 000:2507 003:547
    conformance/test_flow_control.py::test_the_example_of_10000_bytes
+ default-flow-stop-threshold; 000:2497 000:2504
    conformance/test_flow_control.py::test_the_example_of_10000_bytes
+ default-flow-resume-threshold; 000:2498 000:2504
    conformance/test_flow_control.py::test_the_example_of_10000_bytes
+ default-event-threshold-ratio; 003:426
    broker/test_alerts.py::test_80_percent_of_a_limit
+ default-message-group; 000:2762
    system/test_queue_kinds.py::test_the_default_group
+ default-msg-group; 000:2767
    system/test_queue_kinds.py::test_the_default_group
+ replication-queue; 000:2335 003:1190
    system/test_broker_replication.py::test_a_queue_follows_that_of_another_broker
+ create-replication-queue; 000:2339 000:2343
    system/test_broker_replication.py::test_a_queue_follows_that_of_another_broker
+ replication-listener-name; 000:2337 004:13005
    broker/test_options.py::test_an_option_that_needs_another_one_is_reported_without_it
+ federation-tag; 000:1056
    system/test_federation_ring.py::test_nothing_is_lost_and_nothing_loops_while_brokers_of_a_ring_are_killed
+ link-maintenance-interval; 000:1057 000:2849
    broker/federation/test_bridges.py::test_a_link_that_is_lost_is_made_again_after_the_interval_of_the_option
+ link-heartbeat-interval; 000:1058 000:2850
    broker/federation/test_bridges.py::test_links_have_the_heartbeats_of_the_option
+ known-hosts-url; 000:2844
    system/test_failover.py::test_addresses_are_sent_when_a_queue_is_bound_and_when_they_change
~ worker-threads; 000:269 004:24832
    system/test_qpidd_start.py::test_an_option_without_effect_is_reported
    = ignored, with a line in the log
~ ack; 000:283
    system/test_qpidd_start_options.py::test_options_that_have_no_effect_are_reported
    = ignored, with a line in the log
~ ssl-cert-db; 000:2149 000:2161
    conformance/test_tls.py::test_mistakes_are_found_before_the_broker_starts
    = refused by its name, with what to do instead
~ ssl-cert-name; 000:2161 003:1526
    broker/test_options.py::test_every_option_by_each_of_its_names
    = refused by its name, with what to do instead
~ ssl-use-export-policy; 000:2165 003:1528
    broker/test_options.py::test_unsupported_option_may_be_switched_off
    = refused by its name
~ ha-cluster; 000:2840 000:2867
    system/test_qpidd_start_options.py::test_a_broker_that_cannot_be_as_safe_as_configured_does_not_start
    = refused by its name
~ cluster-name; 003:786 003:811
    broker/test_options.py::test_every_option_by_each_of_its_names
    = refused by its name
== Options of the store
+ store-dir; 003:646 004:24944
    store/test_parameters.py::test_store_directory
+ store-directory; 000:376 004:27982
    store/test_parameters.py::test_store_directory
+ num-jfiles; 000:388 003:675
    store/test_parameters.py::test_a_journal_that_may_grow_starts_small_unless_its_size_is_set
+ jfile-size-pgs; 000:389 003:676
    store/test_parameters.py::test_correction
+ wcache-page-size; 003:677 004:24948
    store/test_parameters.py::test_a_page_that_does_not_fit_the_file_is_made_smaller
+ tpl-num-jfiles; 003:678 004:24976
    system/test_broker_in_doubt.py::test_a_full_prepared_list_refuses_branches_and_leaves_nothing_of_them
+ tpl-jfile-size-pgs; 003:679 004:24977
    system/test_broker_in_doubt.py::test_a_full_prepared_list_refuses_branches_and_leaves_nothing_of_them
+ tpl-wcache-page-size; 003:680 004:24978
    store/test_parameters.py::test_a_cache_has_twice_as_many_pages_as_qpidd_gives_it
+ truncate; 003:681 003:909
    store/test_identity.py::test_truncate_discards_even_a_clean_store
~ store-async; 000:379 004:27984
    store/test_parameters.py::test_options_without_use_are_accepted_with_a_notice
    = ignored, with a line in the log
~ store-force; 000:383 004:27986
    store/test_parameters.py::test_options_without_use_are_accepted_with_a_notice
    = ignored, with a line in the log
== Options of clients
+ reconnect; 000:3064 003:888
    broker/client/test_failures.py::test_messages_survive_a_kill
+ reconnect_urls; 000:3074
    broker/client/test_address.py::test_options_as_words_or_values
+ heartbeat; 000:3068 003:889
    broker/client/test_failures.py::test_heartbeats_find_a_broker_that_stands_still
+ heartbeat of a Java URL; 000:3105
    broker/client/test_address.py::test_java_urls_have_heartbeats_and_the_failover_exchange
+ idle_timeout; 003:883
    broker/client/test_address.py::test_java_urls_have_heartbeats_and_the_failover_exchange
+ failover_exchange; 000:3100 003:879
    broker/client/test_address.py::test_java_urls_have_heartbeats_and_the_failover_exchange
+ QPID_SSL_CERT_DB; 000:2193 003:1553
    broker/security/test_tls.py::test_the_environment_of_the_c_plus_plus_client
+ QPID_SSL_CERT_NAME; 000:2194 003:1554
    broker/security/test_tls.py::test_the_environment_of_the_c_plus_plus_client
+ QPID_SSL_CERT_PASSWORD_FILE; 000:2192 003:1552
    broker/security/test_tls.py::test_the_environment_of_the_c_plus_plus_client
~ QPID_SSL_USE_EXPORT_POLICY; 000:2191 003:1551
    broker/security/test_tls.py::test_the_environment_of_the_c_plus_plus_client
    = refused by its name
+ brokerlist; 004:34995-35030
    broker/client/test_address.py::test_urls_of_the_java_client_are_read
+ maxprefetch; 004:34995-35030
    broker/client/test_address.py::test_urls_of_the_java_client_are_read
+ routingkey; 004:34903-34990
    broker/client/test_messaging.py::test_binding_urls
+ create; 000:2260 003:466
    broker/client/test_messaging.py::test_queue_with_options
+ x-declare; 000:2260 003:466
    broker/client/test_messaging.py::test_queue_with_options
+ mode; 000:2299
    broker/client/test_messaging.py::test_browsing
"""
"""The arguments and options that they name: `+` has the effect that the test shows, `~` is refused or reported."""


class Feature(NamedTuple):
    """One row.

    Attributes:
        area: the heading.
        state: one of `STATES`.
        name: the feature, in words.
        sources: where the documents name it, each DOCUMENT:LINE or DOCUMENT:FIRST-LAST.
        tests: the tests that show it, below `tests`.
        note: what is missing, or why it does not apply.
    """

    area: str
    state: str
    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    note: str


def features(table: str = TABLE) -> Iterator[Feature]:
    """The rows of a table. Raises ValueError: a line is none."""
    area = ""
    lines = [line for line in table.splitlines() if line]
    for at, line in enumerate(lines):
        if line.startswith("== "):
            area = line[3:]
        elif not line.startswith(" "):
            found = re.fullmatch(r"([+~/>-]) (.*); ([\d: -]+)", line)
            if found is None:
                raise ValueError(f"not a row: {line}")
            rest = lines[at + 1 :]
            more = [each.strip() for each in rest[: next((i for i, x in enumerate(rest) if x[0] != " "), len(rest))]]
            tests = tuple(each for each in more if not each.startswith("= "))
            note = " ".join(each[2:] for each in more if each.startswith("= "))
            yield Feature(area, STATES[found[1]], found[2], tuple(found[3].split()), tests, note)


def main(wanted: str = "") -> None:
    """Print the rows, all or those of one state, and how many there are of each; or those of `NAMES`."""
    rows, what = list(features()), "features"
    if wanted == "names":
        rows, what, wanted = list(features(NAMES)), "names", ""
    for area, group in groupby(rows, lambda row: row.area):
        for number, row in enumerate(row for row in group if row.state in (wanted or row.state)):
            print(*(("", area) if number == 0 else ()), sep="\n", end="\n" if number == 0 else "")
            print(f"  {row.state:10}{row.name}  [{' '.join(row.sources)}]")
            for line in (*row.tests, *([row.note] if row.note else ())):
                print(f"{'':12}{line}")
    sums = Counter(row.state for row in rows)
    print(f"\n{len(rows)} {what}: {', '.join(f'{sums[state]} {state}' for state in STATES.values())}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
