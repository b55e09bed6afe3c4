"""The load generator: publishers and consumers on many connections, as fast as the broker lets them.

It is used by `qstore-perf` and `qpid-perftest`. All protocols are those of the broker's own client machines; what they
lack is speed for many equal messages, which are encoded once, sent together, and taken as runs where they come in.

Modules, in the order in which they build on each other:

    loop                                   sockets and timers in one loop, and connections to a broker (`Line`)
    channel                                what is done on a channel, in the words of no protocol
    amqp_0_9_1, amqp_0_10, amqp_1_0        channels of the protocols; `protocols` finds them
    latencies                              latencies as counts, their percentiles and their picture
    counters                               the numbers of all processes of a run, in shared memory
    clients                                a publisher and a consumer: windows, rates, limits, time stamps
    throughput, churn, counts              the scenarios
"""
