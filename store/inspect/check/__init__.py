"""Verifies a whole store: what recovery reads, and what it passes over.

Recovery itself (`store.inspect.offline`) finds most of what is wrong: headers, tails, checksums, overwrite indicators,
flush numbers, ids used twice, dequeues of nothing, transactions, queues without journals and the reverse. A check adds
what recovery has no use for:

    file_times    file headers whose times, and of a legacystore the record ids, run backwards
    messages      whether each outstanding message's frames fit, since a legacystore has no checksums
    pools         the files of a linearstore's pools
    second_pass   with "paranoid": every record again, one by one, with other code for the checksums
"""
