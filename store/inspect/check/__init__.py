"""Verifies a whole store: what recovery reads, and what it skips.

Recovery itself (`store.inspect.offline`) finds most damage: headers, tails, checksums, overwrite indicators, flush
numbers, ids used twice, dequeues of missing messages, transactions, queues without journals and the reverse. A check
adds what recovery does not need:

    file_times    file headers whose times, and in a legacystore the record ids, decrease
    messages      whether each outstanding message's frames fit, since a legacystore has no checksums
    pools         the files of a linearstore's pools
    second_pass   with "paranoid": every record again, one by one, with different checksum code
"""
